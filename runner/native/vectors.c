/* Products of few rows by vectors, of a weight as it lies or in blocks. */

#include "product.h"

#ifdef HAS_BF16

enum { VECTOR_ROWS = 4 }; /* that are taken at a time */

/* One sum of a weight as it lies. */
INLINE VECTORS void put_one(const product *p, int64_t m, int64_t n, float sum) {
    const __m128 bias = _mm_castsi128_ps(_mm_cvtsi32_si128(p->bias ? (int)((pair)p->bias[n] << 16) : 0));
    const __m128bh rounded = _mm_cvtneps_pbh(_mm_add_ss(_mm_set_ss(sum), bias));
    p->y[m * p->width + n] = (bf16)_mm_extract_epi16((__m128i)rounded, 0);
}

INLINE VECTORS __m512bh load(const bf16 *at, int64_t left) {
    const __mmask32 mask = left >= 2 * LANES ? 0xffffffff : (1u << left) - 1;
    return (__m512bh)_mm512_maskz_loadu_epi16(mask, at);
}

/* Rows m to m + count of x by row n of w. */
INLINE VECTORS void dot(const product *p, int count, int64_t m, int64_t n) {
    const bf16 *x = p->x + m * p->size, *w = p->w + n * p->size;
    __m512 sums[VECTOR_ROWS][2];
    for (int i = 0; i < count; i++) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < p->size; k += 4 * LANES) {
        ask_for(p, w + k, 2);
        for (int half = 0; half < 2; half++) {
            const int64_t at = k + half * 2 * LANES, left = p->size - at;
            if (left <= 0) break;
            const __m512bh weights = load(w + at, left);
            for (int i = 0; i < count; i++)
                sums[i][half] = _mm512_dpbf16_ps(sums[i][half], load(x + i * p->size + at, left), weights);
        }
    }
    for (int i = 0; i < count; i++) put_one(p, m + i, n, _mm512_reduce_add_ps(_mm512_add_ps(sums[i][0], sums[i][1])));
}

VECTORS void multiply_plain(const product *p, int64_t start, int64_t stop) {
    for (int64_t n = start; n < stop; n++)
        for (int64_t m = 0; m < p->rows; m += VECTOR_ROWS)
            switch (p->rows - m) { /* each a loop of its own, unrolled */
            case 1: dot(p, 1, m, n); break;
            case 2: dot(p, 2, m, n); break;
            case 3: dot(p, 3, m, n); break;
            default: dot(p, 4, m, n);
            }
}

/* Rows m to m + count of x by the block from column n on, `wide` registers wide. */
INLINE VECTORS void dot_block(const product *p, int count, int wide, int64_t m, int64_t n) {
    const pair *x = (const pair *)p->x + m * p->size / 2, *w = (const pair *)p->w + n * p->size / 2;
    const int64_t pairs = p->size / 2;
    __m512 sums[VECTOR_ROWS][4];
    for (int i = 0; i < count; i++)
        for (int j = 0; j < wide; j++) sums[i][j] = _mm512_setzero_ps();
    for (int64_t k = 0; k < pairs; k++, w += wide * LANES) {
        __m512bh weights[4];
        ask_for(p, w, wide);
        for (int j = 0; j < wide; j++) weights[j] = (__m512bh)_mm512_loadu_si512(w + j * LANES);
        for (int i = 0; i < count; i++) {
            const __m512bh row = (__m512bh)_mm512_set1_epi32((int)x[i * pairs + k]);
            for (int j = 0; j < wide; j++) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], row, weights[j]);
        }
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < wide; j++) put(p, m + i, n + j * LANES, sums[i][j]);
}

INLINE VECTORS void dot_rows(const product *p, int wide, int64_t n) {
    for (int64_t m = 0; m < p->rows; m += VECTOR_ROWS)
        switch (p->rows - m) {
        case 1: dot_block(p, 1, wide, m, n); break;
        case 2: dot_block(p, 2, wide, m, n); break;
        case 3: dot_block(p, 3, wide, m, n); break;
        default: dot_block(p, 4, wide, m, n);
        }
}

VECTORS void multiply_blocks(const product *p, int64_t start, int64_t stop) {
    for (int64_t n = start; n < stop; n += p->block)
        switch (p->block / LANES) {
        case 1: dot_rows(p, 1, n); break;
        case 2: dot_rows(p, 2, n); break;
        case 3: dot_rows(p, 3, n); break;
        default: dot_rows(p, 4, n);
        }
}

#endif
