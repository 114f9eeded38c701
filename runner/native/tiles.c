/* Products of few rows and of many by tiles, of a weight in blocks. A row's sums are the same among few and among many. */

#include "product.h"

#ifdef HAS_BF16

typedef struct {
    uint8_t palette, start, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

/* Tiles 0 to 3 hold sums, 4 holds `count` rows of x, 5 to 7 are whole. */
TILES void shape_tiles(int count) {
    tile_shapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        shapes.row_bytes[tile] = LINE;
        shapes.rows[tile] = (uint8_t)(tile < 5 ? count : SIDE);
    }
    __asm__ volatile("" : : "r"(&shapes) : "memory"); /* GCC 12 thinks that only the first bytes are read */
    _tile_loadconfig(&shapes);
}

TILES void release_tiles(void) { _tile_release(); }

INLINE TILES void add_tiles(const product *p, int wide, int64_t m, int64_t n, float (*sums)[SIDE * SIDE]) {
    const bf16 *x = p->x + m * p->size;
    const pair *w = (const pair *)p->w + n * p->size / 2;
    const int64_t row = wide * LINE;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < p->size; k += 2 * SIDE, w += SIDE * wide * LANES) {
        ask_for(p, w, wide * SIDE);
        _tile_loadd(4, x + k, p->size * (int64_t)sizeof(bf16));
        _tile_loadd(5, w, row);
        _tile_dpbf16ps(0, 4, 5);
        if (wide > 1) {
            _tile_loadd(6, w + LANES, row);
            _tile_dpbf16ps(1, 4, 6);
        }
        if (wide > 2) {
            _tile_loadd(5, w + 2 * LANES, row);
            _tile_dpbf16ps(2, 4, 5);
        }
        if (wide > 3) {
            _tile_loadd(6, w + 3 * LANES, row);
            _tile_dpbf16ps(3, 4, 6);
        }
    }
    _tile_stored(0, sums[0], LINE);
    _tile_stored(1, sums[1], LINE);
    _tile_stored(2, sums[2], LINE);
    _tile_stored(3, sums[3], LINE);
}

/* SIDE rows of x at a time; for more a block is read again, from a cache. */
TILES void multiply_tiles(const product *p, int64_t start, int64_t stop) {
    float sums[4][SIDE * SIDE] __attribute__((aligned(LINE)));
    for (int64_t n = start; n < stop; n += p->block)
        for (int64_t m = 0; m < p->rows; m += SIDE) {
            const int count = (int)(p->rows - m < SIDE ? p->rows - m : SIDE);
            if (n == start || p->rows > SIDE) shape_tiles(count);
            switch (p->block / LANES) {
            case 1: add_tiles(p, 1, m, n, sums); break;
            case 2: add_tiles(p, 2, m, n, sums); break;
            case 3: add_tiles(p, 3, m, n, sums); break;
            default: add_tiles(p, 4, m, n, sums);
            }
            for (int i = 0; i < count; i++)
                for (int j = 0; j < p->block / LANES; j++)
                    put(p, m + i, n + j * LANES, _mm512_load_ps(sums[j] + i * SIDE));
        }
    _tile_release();
}

INLINE VECTORS void put_square(const product *p, int has_bias, int then, int64_t m, int64_t n,
                               float (*sums)[SIDE * SIDE]) {
    for (int i = 0; i < 2 * SIDE; i++, m++) {
        const float *left = sums[i / SIDE * 2] + i % SIDE * SIDE, *right = left + SIDE * SIDE;
        const __m512 first = finish(p, has_bias, then, m, n, _mm512_load_ps(left));
        const __m512 second = finish(p, has_bias, then, m, n + LANES, _mm512_load_ps(right));
        _mm512_storeu_si512(p->y + m * p->width + n, (__m512i)_mm512_cvtne2ps_pbh(second, first));
    }
}

/* 2 * SIDE rows of x by 2 * LANES columns: tiles 0 to 3 hold sums, 4 and 5 hold x, 6 and 7 a weight. next: a weight that
 * is asked for meanwhile, or none. */
INLINE TILES void multiply_square(const product *p, int64_t m, int64_t n, const pair *w, const char *next) {
    const bf16 *x = p->x + m * p->size;
    const int64_t x_row = p->size * (int64_t)sizeof(bf16), w_row = p->block * (int64_t)sizeof(pair);
    float sums[4][SIDE * SIDE] __attribute__((aligned(LINE)));
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < p->size; k += 2 * SIDE, x += 2 * SIDE, w += SIDE * p->block) {
        if (next)
            for (int line = 0; line < 2 * SIDE; line++, next += LINE) _mm_prefetch(next, _MM_HINT_T1);
        for (int row = 0; row < 2 * SIDE; row++)
            _mm_prefetch((const char *)(x + row * p->size) + 2 * LINE, _MM_HINT_T0);
        _tile_loadd(6, w, w_row);
        _tile_loadd(4, x, x_row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + LANES, w_row);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x + SIDE * p->size, x_row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums[0], LINE);
    _tile_stored(1, sums[1], LINE);
    _tile_stored(2, sums[2], LINE);
    _tile_stored(3, sums[3], LINE);
    switch (p->then * 2 + (p->bias != 0)) { /* each a loop of its own */
    case 2 * NOTHING: put_square(p, 0, NOTHING, m, n, sums); break;
    case 2 * NOTHING + 1: put_square(p, 1, NOTHING, m, n, sums); break;
    case 2 * SILU: put_square(p, 0, SILU, m, n, sums); break;
    case 2 * TIMES: put_square(p, 0, TIMES, m, n, sums); break;
    case 2 * PLUS: put_square(p, 0, PLUS, m, n, sums); break;
    default: put_square(p, p->bias != 0, p->then, m, n, sums);
    }
}

/* The last square ends with the last row of all, so that some rows are computed twice: to the same numbers. */
TILES void multiply_panel(const product *p, int64_t start, int64_t stop, int64_t from, int64_t to) {
    const int64_t pairs = p->size / 2;
    for (int64_t n = from; n < to; n += 2 * LANES) {
        const pair *w = (const pair *)p->w + n / p->block * p->block * pairs + n % p->block;
        const int has_next = p->block == 2 * LANES && n + 2 * LANES < p->width;
        const char *next = has_next ? (const char *)(w + 2 * LANES * pairs) : 0;
        for (int64_t m = start; m < stop; m += 2 * SIDE, next = 0)
            multiply_square(p, m + 2 * SIDE <= p->rows ? m : p->rows - 2 * SIDE, n, w, next);
    }
}

#endif
