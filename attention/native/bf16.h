/* What all that is compiled here shares: names of types and targets, and powers. Nothing is compiled for other machines than
 * x86 under Linux. */

#pragma once

#include <stdint.h>

typedef uint16_t bf16;
typedef uint32_t pair; /* two neighbouring bf16 */

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && __GNUC__ >= 11
#define HAS_BF16

#include <immintrin.h>

#define VECTORS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define TILES __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")))
#define INLINE static inline __attribute__((always_inline))

/* 2^x, whole part by scaling, the rest by a series that is good to 2e-7. A NaN stays one. */
INLINE VECTORS __m512 power(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-126.0f), x);
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 part = _mm512_sub_ps(x, whole);
    __m512 series = _mm512_set1_ps(1.54035304e-4f);
    series = _mm512_fmadd_ps(series, part, _mm512_set1_ps(1.33335581e-3f));
    series = _mm512_fmadd_ps(series, part, _mm512_set1_ps(9.61812911e-3f));
    series = _mm512_fmadd_ps(series, part, _mm512_set1_ps(5.55041087e-2f));
    series = _mm512_fmadd_ps(series, part, _mm512_set1_ps(2.40226507e-1f));
    series = _mm512_fmadd_ps(series, part, _mm512_set1_ps(6.93147181e-1f));
    series = _mm512_fmadd_ps(series, part, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(series, whole);
}

#endif
