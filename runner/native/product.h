/* What a product is, and how its sums become numbers. Nothing is compiled for other machines than x86 under Linux. */

#pragma once

#include "../../attention/native/bf16.h"

#ifdef HAS_BF16

enum {
    AHEAD = 4096, /* bytes that are asked for ahead of those in use */
    LINE = 64,    /* bytes */
    LANES = 16,   /* sums in a register */
    SIDE = 16     /* rows of a tile; one of a weight holds as many pairs, of as many columns */
};

/* block: 0 for a weight as it lies, (width, size); else it lies as (width / block, size / 2, block, 2). then: what is done
 * with a sum before it is rounded; other (rows, width): what it is multiplied by or added to. */
typedef struct {
    const bf16 *x, *w, *bias, *other;
    bf16 *y;
    int64_t rows, width, size, block;
    enum { NOTHING, SILU, TIMES, PLUS } then;
} product;

INLINE VECTORS __m512 widen(const bf16 *at) {
    const __m256i narrow = _mm256_loadu_si256((const __m256i *)at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

/* x / (1 + exp(-x)) */
INLINE VECTORS __m512 silu(__m512 x) {
    const __m512 shrunk = power(_mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f)));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), shrunk));
}

INLINE VECTORS __m512 finish(const product *p, int has_bias, int then, int64_t m, int64_t n, __m512 sums) {
    const int64_t at = m * p->width + n;
    if (has_bias) sums = _mm512_add_ps(sums, widen(p->bias + n));
    if (then == SILU) sums = silu(sums);
    if (then == TIMES) sums = _mm512_mul_ps(sums, widen(p->other + at));
    if (then == PLUS) sums = _mm512_add_ps(sums, widen(p->other + at));
    return sums;
}

/* LANES sums of row m, from column n on. */
INLINE VECTORS void put(const product *p, int64_t m, int64_t n, __m512 sums) {
    sums = finish(p, p->bias != 0, p->then, m, n, sums);
    _mm256_storeu_si256((__m256i *)(p->y + m * p->width + n), (__m256i)_mm512_cvtneps_pbh(sums));
}

INLINE void ask_for(const product *p, const void *at, int lines) {
    const char *next = (const char *)at + AHEAD, *end = (const char *)(p->w + p->width * p->size);
    if (next + lines * LINE > end) return;
    for (int line = 0; line < lines; line++) _mm_prefetch(next + line * LINE, _MM_HINT_T0);
}

/* Columns start to stop of y, of few rows: whole blocks, but of a plain weight. */
void multiply_plain(const product *p, int64_t start, int64_t stop);
void multiply_blocks(const product *p, int64_t start, int64_t stop);
void multiply_tiles(const product *p, int64_t start, int64_t stop);

/* Rows start to stop of x, which stay in a cache, by columns from to to, between the other two on the same thread. */
void shape_tiles(int rows);
void multiply_panel(const product *p, int64_t start, int64_t stop, int64_t from, int64_t to);
void release_tiles(void);

#endif
