/* What is done to bfloat16 rows between products, in one pass over memory: norms, and turns of pairs of numbers. Rounded
 * where torch's operators round; no row depends on others, nor on the number of threads. Called through ctypes
 * (runner/row_passes.py). */

#include "product.h"

#ifdef HAS_BF16

enum { WORTH_A_THREAD = 1 << 16 }; /* numbers; below, waking another one takes longer */

INLINE VECTORS void store(bf16 *at, __m512 x) { _mm256_storeu_si256((__m256i *)at, (__m256i)_mm512_cvtneps_pbh(x)); }

INLINE VECTORS __m512 rounded(__m512 x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)), 16));
}

static VECTORS void norm(const bf16 *x, const bf16 *weight, bf16 *y, int64_t size, float eps) {
    __m512 squares = _mm512_setzero_ps(), more = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += 2 * LANES) {
        const __m512 first = widen(x + i);
        squares = _mm512_fmadd_ps(first, first, squares);
        if (i + LANES == size) break;
        const __m512 second = widen(x + i + LANES);
        more = _mm512_fmadd_ps(second, second, more);
    }
    const float mean = _mm512_reduce_add_ps(_mm512_add_ps(squares, more)) / (float)size;
    const __m512 scale = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_sqrt_ps(_mm512_set1_ps(mean + eps)));
    for (int64_t i = 0; i < size; i += LANES)
        store(y + i, _mm512_mul_ps(rounded(_mm512_mul_ps(widen(x + i), scale)), widen(weight + i)));
}

static VECTORS void turn(bf16 *x, const bf16 *cosines, const bf16 *sines, int64_t size) {
    const int64_t half = size / 2;
    for (int64_t i = 0; i < half; i += LANES) {
        const __m512 low = widen(x + i), high = widen(x + half + i);
        const __m512 to_low = rounded(_mm512_mul_ps(high, widen(sines + i)));
        const __m512 to_high = rounded(_mm512_mul_ps(low, widen(sines + half + i)));
        store(x + i, _mm512_fmadd_ps(low, widen(cosines + i), to_low));
        store(x + half + i, _mm512_fmadd_ps(high, widen(cosines + half + i), to_high));
    }
}

static void norm_row(const bf16 *x, const bf16 *weight, bf16 *y, int64_t heads, int64_t size, float eps) {
    for (int64_t h = 0; h < heads; h++) norm(x + h * size, weight, y + h * size, size, eps);
}

static void turn_row(bf16 *x, const bf16 *cosines, const bf16 *sines, int64_t heads, int64_t size) {
    for (int64_t h = 0; h < heads; h++) turn(x + h * size, cosines, sines, size);
}

/* RMS norm: x (rows, heads, size), rows `stride` numbers apart, each head by weight (size) -> y, dense. size: a multiple of
 * LANES. */
void evs_norm(const bf16 *x, const bf16 *weight, bf16 *y, int64_t rows, int64_t heads, int64_t size, int64_t stride,
              float eps, int threads) {
    const int64_t dense = heads * size;
    if (threads == 1 || rows * dense < WORTH_A_THREAD) {
        for (int64_t r = 0; r < rows; r++) norm_row(x + r * stride, weight, y + r * dense, heads, size, eps);
        return;
    }
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; r++) norm_row(x + r * stride, weight, y + r * dense, heads, size, eps);
}

/* Turns pairs (i, i + size / 2) of x (rows, heads, size), in place; rows `stride` numbers apart. cosines, sines (rows, size),
 * the first half of the sines negated. size: a multiple of 2 * LANES. */
void evs_turn(bf16 *x, const bf16 *cosines, const bf16 *sines, int64_t rows, int64_t heads, int64_t size, int64_t stride,
              int threads) {
    if (threads == 1 || rows * heads * size < WORTH_A_THREAD) {
        for (int64_t r = 0; r < rows; r++) turn_row(x + r * stride, cosines + r * size, sines + r * size, heads, size);
        return;
    }
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; r++) turn_row(x + r * stride, cosines + r * size, sines + r * size, heads, size);
}

#else

void evs_norm(void) {}

void evs_turn(void) {}

#endif
