/* Attention of many queries, to all keys of a segment or to those before them, of several segments of one length or of one
 * whose keys lie in pages. First keys and values are laid out as tiles want them, then squares of queries and keys are
 * multiplied, with sums in float32; what a softmax makes of scores is rounded to bfloat16 before it meets values. No row's
 * result depends on other queries or on the number of threads. Called through ctypes (attention/many.py). */

#include "attend.h"

/* q and out (count * queries, heads, size), out dense, keys and values (count * length, kv_heads, size), or, with pages, one
 * segment's rows in pages of page_size; strides between rows, in numbers. space: as many numbers as keys and values have,
 * length being a multiple of 32, and on a line. causal: query i of a segment sees all keys but the last queries - 1 - i. */
typedef struct {
    const int64_t *pages;
    const bf16 *q, *keys, *values;
    bf16 *out;
    pair *space;
    int64_t count, queries, length, heads, kv_heads, size, page_size, q_stride, key_stride, value_stride, causal;
    float scale;
} batch;

#ifdef HAS_BF16

enum { ROWS = 2 * SIDE, TILE = SIDE * SIDE /* pairs */ };

typedef struct {
    bf16 queries[ROWS * LARGEST];
    float sums[ROWS * LARGEST]; /* of values, in the order in which pairs of them unpack */
    float scores[ROWS][BLOCK];
    bf16 shares[ROWS][BLOCK];
    float fresh[ROWS][WIDE];
    float totals[ROWS][SIDE];
    float most[ROWS], factors[ROWS];
    int64_t limits[ROWS];
} __attribute__((aligned(64))) state;

INLINE int64_t whole(int64_t length) { return (length + WIDE - 1) / WIDE * WIDE; }

INLINE pair *space_of(const batch *p, int64_t s, int64_t h, int is_values) {
    return p->space + ((s * p->kv_heads + h) * 2 + is_values) * whole(p->length) * p->size / 2;
}

INLINE int64_t row_of(const batch *p, int64_t s, int64_t i) {
    return p->pages ? p->pages[i / p->page_size] * p->page_size + i % p->page_size : s * p->length + i;
}

/* WIDE keys and values of head h from key `from` on; behind the last, zeros. */
static VECTORS void lay_out(const batch *p, int64_t s, int64_t h, int64_t from) {
    const int64_t steps = p->size / WIDE;
    pair *keys = space_of(p, s, h, 0) + from / SIDE * steps * TILE;
    pair *values = space_of(p, s, h, 1) + from / WIDE * 2 * steps * TILE;
    for (int64_t c = 0; c < steps; c++) {
        for (int g = 0; g < 2; g++) {
            __m512 a[SIDE], b[SIDE];
            for (int i = 0; i < SIDE; i++) {
                const int64_t key = from + g * SIDE + i;
                a[i] = key < p->length ? _mm512_loadu_ps(p->keys + row_of(p, s, key) * p->key_stride + h * p->size + c * WIDE)
                                       : _mm512_setzero_ps();
            }
            transpose(a, b);
            for (int i = 0; i < SIDE; i++) _mm512_store_ps(keys + (g * steps + c) * TILE + i * SIDE, b[i]);
        }
        for (int i = 0; i < SIDE; i++) {
            __m512i rows[2];
            for (int j = 0; j < 2; j++) {
                const int64_t key = from + 2 * i + j;
                const bf16 *at = p->values + row_of(p, s, key < p->length ? key : 0) * p->value_stride + h * p->size + c * WIDE;
                rows[j] = key < p->length ? _mm512_loadu_si512(at) : _mm512_setzero_si512();
            }
            _mm512_store_si512(values + 2 * c * TILE + i * SIDE, _mm512_unpacklo_epi16(rows[0], rows[1]));
            _mm512_store_si512(values + (2 * c + 1) * TILE + i * SIDE, _mm512_unpackhi_epi16(rows[0], rows[1]));
        }
    }
}

/* c (ROWS, WIDE) = rows a by two columns of tiles, `steps` long; strides of rows in numbers. */
INLINE TILES void square(const bf16 *a, int64_t a_stride, const pair *left, const pair *right, int64_t apart, int64_t steps,
                         float *c, int64_t c_stride) {
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t k = 0; k < steps; k++) {
        _tile_loadd(4, a + k * WIDE, a_stride * 2);
        _tile_loadd(6, left + k * apart, LINE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right + k * apart, LINE);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + SIDE * a_stride + k * WIDE, a_stride * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_stride * 4); _tile_stored(1, c + SIDE, c_stride * 4);
    _tile_stored(2, c + SIDE * c_stride, c_stride * 4); _tile_stored(3, c + SIDE * c_stride + SIDE, c_stride * 4);
}

/* Hides what a row does not see of the `width` keys from `at` on. */
INLINE VECTORS void hide(state *s, int64_t at, int64_t width) {
    for (int r = 0; r < ROWS; r++)
        for (int64_t i = s->limits[r] > at ? s->limits[r] - at : 0; i < width; i++) s->scores[r][i] = -__builtin_inff();
}

/* Shares of a block's keys in what has been seen so far, and the factors by which older sums shrink. */
INLINE VECTORS void weigh(state *s, int64_t width, float scale) {
    const __m512 unit = _mm512_set1_ps(scale * 1.44269504f);
    for (int half = 0; half < ROWS; half += SIDE) {
        const __m512 before = _mm512_load_ps(s->most + half);
        for (int r = half; r < half + SIDE; r++) {
            __m512 most = _mm512_set1_ps(s->most[r]);
            for (int64_t i = 0; i < width; i += SIDE) most = _mm512_max_ps(_mm512_load_ps(s->scores[r] + i), most);
            s->most[r] = _mm512_reduce_max_ps(most);
        }
        const __m512 bounds = _mm512_mul_ps(_mm512_load_ps(s->most + half), unit);
        _mm512_store_ps(s->factors + half, power(_mm512_fmsub_ps(before, unit, bounds)));
    }
    for (int r = 0; r < ROWS; r++) {
        const __m512 bound = _mm512_mul_ps(_mm512_set1_ps(s->most[r]), unit);
        __m512 total = _mm512_mul_ps(_mm512_load_ps(s->totals[r]), _mm512_set1_ps(s->factors[r]));
        for (int64_t i = 0; i < width; i += WIDE) {
            const __m512 first = power(_mm512_fmsub_ps(_mm512_load_ps(s->scores[r] + i), unit, bound));
            const __m512 next = power(_mm512_fmsub_ps(_mm512_load_ps(s->scores[r] + i + SIDE), unit, bound));
            total = _mm512_add_ps(total, _mm512_add_ps(first, next));
            _mm512_store_si512(s->shares[r] + i, (__m512i)_mm512_cvtne2ps_pbh(next, first));
        }
        _mm512_store_ps(s->totals[r], total);
    }
}

INLINE VECTORS void add(state *s, int64_t at, int64_t size) {
    for (int r = 0; r < ROWS; r++)
        for (int half = 0; half < WIDE; half += SIDE) {
            float *sums = s->sums + r * size + at + half;
            const __m512 old = _mm512_mul_ps(_mm512_load_ps(sums), _mm512_set1_ps(s->factors[r]));
            _mm512_store_ps(sums, _mm512_add_ps(old, _mm512_load_ps(s->fresh[r] + half)));
        }
}

/* ROWS queries of segment n from number `from` on, of one head. */
static TILES void attend(const batch *p, int64_t n, int64_t head, int64_t from) {
    state s;
    const int64_t h = head / (p->heads / p->kv_heads), steps = p->size / WIDE, length = whole(p->length);
    const int64_t rows = p->queries - from < ROWS ? p->queries - from : ROWS;
    const pair *keys = space_of(p, n, h, 0), *values = space_of(p, n, h, 1);
    const bf16 *q = p->q + (n * p->queries + from) * p->q_stride + head * p->size;
    memset(s.queries, 0, (size_t)(ROWS * p->size) * sizeof(bf16));
    memset(s.sums, 0, (size_t)(ROWS * p->size) * sizeof(float));
    memset(s.totals, 0, sizeof(s.totals));
    for (int r = 0; r < ROWS; r++) {
        const int64_t i = from + (r < rows ? r : rows - 1);
        if (r < rows) memcpy(s.queries + r * p->size, q + r * p->q_stride, (size_t)p->size * sizeof(bf16));
        s.limits[r] = p->causal ? p->length - p->queries + i + 1 : p->length;
        s.most[r] = -__builtin_inff();
    }
    for (int64_t at = 0; at < s.limits[ROWS - 1]; at += BLOCK) {
        const int64_t left = length - at, most = whole(s.limits[ROWS - 1]) - at;
        const int64_t bound = most < left ? most : left, width = bound < BLOCK ? bound : BLOCK;
        for (int64_t i = 0; i < width; i += WIDE) {
            const pair *tiles = keys + (at + i) / SIDE * steps * TILE;
            square(s.queries, p->size, tiles, tiles + steps * TILE, TILE, steps, s.scores[0] + i, BLOCK);
        }
        if (at + width > s.limits[0]) hide(&s, at, width);
        weigh(&s, width, p->scale);
        for (int64_t c = 0; c < steps; c++) {
            const pair *tiles = values + (at / WIDE * 2 * steps + 2 * c) * TILE;
            square(s.shares[0], BLOCK, tiles, tiles + TILE, 2 * steps * TILE, width / WIDE, s.fresh[0], WIDE);
            add(&s, c * WIDE, p->size);
        }
    }
    for (int r = 0; r < rows; r++) {
        const __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(_mm512_load_ps(s.totals[r])));
        bf16 *out = p->out + ((n * p->queries + from + r) * p->heads + head) * p->size;
        for (int64_t c = 0; c < p->size; c += WIDE) {
            const float *sums = s.sums + r * p->size + c;
            const __m512 low = _mm512_mul_ps(_mm512_load_ps(sums), share);
            _mm512_storeu_si512(out + c, join(low, _mm512_mul_ps(_mm512_load_ps(sums + SIDE), share)));
        }
    }
}

void evs_attend_many(const batch *p, int threads) {
    const int64_t chunks = whole(p->length) / WIDE, blocks = (p->queries + ROWS - 1) / ROWS;
#pragma omp parallel num_threads(threads)
    {
        shape_tiles();
#pragma omp for schedule(static)
        for (int64_t task = 0; task < p->count * p->kv_heads * chunks; task++)
            lay_out(p, task / chunks / p->kv_heads, task / chunks % p->kv_heads, task % chunks * WIDE);
#pragma omp for schedule(dynamic, 4)
        for (int64_t task = 0; task < p->count * p->heads * blocks; task++) /* heads that share keys one after another */
            attend(p, task / (p->heads * blocks), task / blocks % p->heads, (blocks - 1 - task % blocks) * ROWS);
        release_tiles();
    }
}

#else

void evs_attend_many(const batch *p, int threads) { (void)p, (void)threads; }

#endif
