/* Tiles and powers for attention. For CPUs with tiles of bfloat16; elsewhere nothing is compiled. */

#pragma once

#include <stddef.h>
#include <string.h>

#include "bf16.h"

#ifdef HAS_BF16

enum {
    SIDE = 16,       /* rows of a tile, each of so many pairs or float32 numbers */
    LINE = 4 * SIDE, /* bytes of such a row */
    WIDE = 2 * SIDE, /* numbers in a row of a tile */
    BLOCK = 128,     /* keys between which sums are weighed anew */
    LARGEST = 256    /* numbers of a key */
};

/* Rows of SIDE numbers as columns; overwrites a. */
INLINE VECTORS void transpose(__m512 a[SIDE], __m512 b[SIDE]) {
    for (int i = 0; i < SIDE; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4)
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = (__m512)_mm512_unpacklo_pd((__m512d)b[i + j], (__m512d)b[i + j + 2]);
            a[i + 2 * j + 1] = (__m512)_mm512_unpackhi_pd((__m512d)b[i + j], (__m512d)b[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) { /* a[4 n + i]: of rows 4 n to 4 n + 3, numbers i, 4 + i, 8 + i and 12 + i */
        const __m512 even = _mm512_shuffle_f32x4(a[i], a[4 + i], 0x88), odd = _mm512_shuffle_f32x4(a[i], a[4 + i], 0xdd);
        const __m512 later = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0x88);
        const __m512 last = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0xdd);
        b[i] = _mm512_shuffle_f32x4(even, later, 0x88), b[8 + i] = _mm512_shuffle_f32x4(even, later, 0xdd);
        b[4 + i] = _mm512_shuffle_f32x4(odd, last, 0x88), b[12 + i] = _mm512_shuffle_f32x4(odd, last, 0xdd);
    }
}

/* WIDE numbers from two registers, of which each has every other four pairs' halves, as unpacking leaves them. */
INLINE VECTORS __m512i join(__m512 low, __m512 high) {
    const __m512i front = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i back = _mm512_add_epi32(front, _mm512_set1_epi32(8));
    const __m512 first = _mm512_permutex2var_ps(low, front, high), last = _mm512_permutex2var_ps(low, back, high);
    return (__m512i)_mm512_cvtne2ps_pbh(last, first);
}

/* Eight tiles of SIDE full rows: kind 1, bytes of a row for each, then rows for each. Constant, for GCC 12 believes that
 * the instruction reads no more than eight bytes of it. */
static const struct {
    uint8_t kind, start_row, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} SHAPE = {1, 0, {0}, {LINE, LINE, LINE, LINE, LINE, LINE, LINE, LINE}, {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE}};

static TILES __attribute__((unused)) void shape_tiles(void) { _tile_loadconfig(&SHAPE); }

static TILES __attribute__((unused)) void release_tiles(void) { _tile_release(); }

#endif
