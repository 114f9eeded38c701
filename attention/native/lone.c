/* Attention of lone queries over pages: each row of a step is the one new row of its sequence, and sees a stretch of that
 * sequence's keys. Its key and value are written first. Sums are float32; what a softmax makes of scores is rounded to
 * bfloat16 before it meets values. No row's result depends on other rows or on the number of threads.
 *
 * Keys are read where they lie, as tiles of SIDE rows, and meet all queries that share them at once. Called through ctypes
 * (attention/lone.py); OpenMP's symbols are left to the library that torch has loaded. */

#include "attend.h"

/* pages: (rows, columns), of `page_size` rows of (kv_heads, size) each, page_size a multiple of 16. slots: where a row's
 * key and value go. Row r sees keys starts[r] to stops[r]. A key meets `group` queries. */
typedef struct {
    const int64_t *pages, *slots, *starts, *stops;
    int64_t rows, columns, page_size, kv_heads, group, size;
} step;

/* Of one layer; strides between rows, in numbers. q (rows, kv_heads * group, size), k and v (rows, kv_heads, size), out as
 * q, dense. */
typedef struct {
    const bf16 *q, *k, *v;
    bf16 *keys, *values, *out;
    int64_t q_stride, k_stride, v_stride;
    float scale;
} layer;

#ifdef HAS_BF16

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What is known of the queries after some keys; and below, of the keys in between. */
typedef struct {
    float sums[LARGEST / SIDE][SIDE][SIDE]; /* of values, in the order in which pairs of them unpack, by query */
    pair queries[LARGEST / WIDE][SIDE][SIDE]; /* pair by pair of a row of keys, all queries side by side */
    float most[SIDE], factors[SIDE], totals[SIDE][SIDE];

    float scores[BLOCK][SIDE]; /* by key */
    float turned[SIDE][BLOCK]; /* by query */
    bf16 shares[SIDE][BLOCK];
    pair values[BLOCK / WIDE][4][SIDE][SIDE]; /* of two keys each */
    float fresh[4][SIDE][SIDE];
    const bf16 *key_groups[BLOCK / SIDE], *value_groups[BLOCK / SIDE];
} __attribute__((aligned(64))) state;

/* Scores of a block's groups of SIDE keys, four at a time; rows of keys lie `apart` bytes from each other. */
INLINE TILES void score(state *s, int64_t groups, int64_t size, int64_t apart) {
    for (int64_t g = 0; g < groups; g += 4) {
        const bf16 *const *at = s->key_groups + g;
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
        for (int64_t c = 0; c < size / WIDE; c++) {
            _tile_loadd(5, s->queries[c], LINE);
            _tile_loadd(4, at[0] + c * WIDE, apart);
            _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(6, at[1] + c * WIDE, apart);
            _tile_dpbf16ps(1, 6, 5);
            _tile_loadd(4, at[2] + c * WIDE, apart);
            _tile_dpbf16ps(2, 4, 5);
            _tile_loadd(6, at[3] + c * WIDE, apart);
            _tile_dpbf16ps(3, 6, 5);
        }
        _tile_stored(0, s->scores[g * SIDE], LINE); _tile_stored(1, s->scores[(g + 1) * SIDE], LINE);
        _tile_stored(2, s->scores[(g + 2) * SIDE], LINE); _tile_stored(3, s->scores[(g + 3) * SIDE], LINE);
    }
}

/* Scores of group g by query. */
INLINE VECTORS void turn(state *s, int queries, int64_t g) {
    __m512 a[SIDE], b[SIDE];
    for (int i = 0; i < SIDE; i++) a[i] = _mm512_load_ps(s->scores[g * SIDE + i]);
    transpose(a, b);
    for (int i = 0; i < queries; i++) _mm512_store_ps(s->turned[i] + g * SIDE, b[i]);
}

/* Of a block's keys only from to to are seen. */
INLINE VECTORS void hide(state *s, int queries, int64_t from, int64_t to, int64_t groups) {
    for (int g = 0; g < queries; g++) {
        for (int64_t i = 0; i < from; i++) s->turned[g][i] = -__builtin_inff();
        for (int64_t i = to; i < groups * SIDE; i++) s->turned[g][i] = -__builtin_inff();
    }
}

/* Shares of a block's keys in what has been seen so far, and the factors by which older sums shrink. */
INLINE VECTORS void weigh(state *s, int queries, int64_t groups, float scale) {
    const __m512 unit = _mm512_set1_ps(scale * 1.44269504f), before = _mm512_load_ps(s->most);
    for (int g = 0; g < queries; g++) {
        __m512 most = _mm512_set1_ps(s->most[g]);
        for (int64_t i = 0; i < groups; i++) most = _mm512_max_ps(_mm512_load_ps(s->turned[g] + i * SIDE), most);
        s->most[g] = _mm512_reduce_max_ps(most);
    }
    const __m512 bounds = _mm512_mul_ps(_mm512_load_ps(s->most), unit);
    _mm512_store_ps(s->factors, power(_mm512_fmsub_ps(before, unit, bounds)));
    for (int g = 0; g < queries; g++) {
        const __m512 bound = _mm512_mul_ps(_mm512_set1_ps(s->most[g]), unit);
        __m512 total = _mm512_mul_ps(_mm512_load_ps(s->totals[g]), _mm512_set1_ps(s->factors[g]));
        for (int64_t i = 0; i < groups; i += 2) {
            const __m512 first = power(_mm512_fmsub_ps(_mm512_load_ps(s->turned[g] + i * SIDE), unit, bound));
            const __m512 next = power(_mm512_fmsub_ps(_mm512_load_ps(s->turned[g] + (i + 1) * SIDE), unit, bound));
            total = _mm512_add_ps(total, _mm512_add_ps(first, next));
            _mm512_store_si512(s->shares[g] + i * SIDE, (__m512i)_mm512_cvtne2ps_pbh(next, first));
        }
        _mm512_store_ps(s->totals[g], total);
    }
}

/* Numbers at on, four tiles or two of them, of a block's values: two rows' side by side; rows that are not seen as 0. */
INLINE VECTORS void unpack(state *s, int64_t at, int tiles, int64_t from, int64_t to, int64_t groups, int64_t apart) {
    for (int64_t i = 0; i < groups * SIDE; i += 2) {
        const bf16 *row = s->value_groups[i / SIDE] + i % SIDE * apart + at;
        const __mmask16 has_even = i >= from && i < to ? 0xffff : 0, has_odd = i + 1 >= from && i + 1 < to ? 0xffff : 0;
        for (int t = 0; t < tiles; t += 2) {
            const __m512i even = _mm512_maskz_loadu_epi32(has_even, row + t * SIDE);
            const __m512i odd = _mm512_maskz_loadu_epi32(has_odd, row + apart + t * SIDE);
            _mm512_store_si512(s->values[i / WIDE][t][i % WIDE / 2], _mm512_unpacklo_epi16(even, odd));
            _mm512_store_si512(s->values[i / WIDE][t + 1][i % WIDE / 2], _mm512_unpackhi_epi16(even, odd));
        }
    }
}

INLINE TILES void sum_up(state *s, int queries, int64_t at, int tiles, int64_t groups) {
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t i = 0; i < groups / 2; i++) {
        _tile_loadd(4, s->shares[0] + i * WIDE, BLOCK * sizeof(bf16));
        _tile_loadd(5, s->values[i][0], LINE);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, s->values[i][1], LINE);
        _tile_dpbf16ps(1, 4, 6);
        if (tiles == 2) continue;
        _tile_loadd(5, s->values[i][2], LINE);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(6, s->values[i][3], LINE);
        _tile_dpbf16ps(3, 4, 6);
    }
    _tile_stored(0, s->fresh[0], LINE); _tile_stored(1, s->fresh[1], LINE);
    _tile_stored(2, s->fresh[2], LINE); _tile_stored(3, s->fresh[3], LINE);
    for (int t = 0; t < tiles; t++)
        for (int g = 0; g < queries; g++) {
            float *sums = s->sums[at / SIDE + t][g];
            const __m512 old = _mm512_mul_ps(_mm512_load_ps(sums), _mm512_set1_ps(s->factors[g]));
            _mm512_store_ps(sums, _mm512_add_ps(old, _mm512_load_ps(s->fresh[t][g])));
        }
}

INLINE VECTORS void begin(state *s, const pair *q, int queries, int64_t size) {
    memset(s, 0, offsetof(state, scores));
    memset(s->shares, 0, sizeof(s->shares));
    for (int g = 0; g < queries; g++)
        for (int64_t p = 0; p < size / 2; p++) s->queries[p / SIDE][p % SIDE][g] = q[g * size / 2 + p];
    for (int g = 0; g < SIDE; g++) s->most[g] = -__builtin_inff();
}

INLINE VECTORS void end(state *s, bf16 *out, int queries, int64_t size) {
    for (int g = 0; g < queries; g++) {
        const __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(_mm512_load_ps(s->totals[g])));
        for (int64_t at = 0; at < size; at += WIDE) {
            const __m512 low = _mm512_mul_ps(_mm512_load_ps(s->sums[at / SIDE][g]), share);
            const __m512 high = _mm512_mul_ps(_mm512_load_ps(s->sums[at / SIDE + 1][g]), share);
            _mm512_storeu_si512(out + g * size + at, join(low, high));
        }
    }
}

/* Where the groups of a block lie whose first key is number `at`. Behind the last comes that again, to a whole four. */
INLINE void find(state *s, const step *p, const layer *l, int64_t r, int64_t h, int64_t at, int64_t groups) {
    for (int64_t g = 0; g < (groups + 3) / 4 * 4; g++) {
        const int64_t key = at + (g < groups ? g : groups - 1) * SIDE;
        const int64_t place = p->pages[r * p->columns + key / p->page_size] * p->page_size + key % p->page_size;
        s->key_groups[g] = l->keys + (place * p->kv_heads + h) * p->size;
        s->value_groups[g] = l->values + (place * p->kv_heads + h) * p->size;
    }
}

/* Row r's queries first to first + queries of those that share head h's keys. */
static TILES void attend(const step *p, const layer *l, int64_t r, int64_t h, int first, int queries) {
    state s;
    const int64_t head = h * p->group + first, apart = p->kv_heads * p->size;
    begin(&s, (const pair *)(l->q + r * l->q_stride + head * p->size), queries, p->size);
    for (int64_t at = p->starts[r] / SIDE * SIDE; at < p->stops[r]; at += BLOCK) {
        const int64_t from = p->starts[r] > at ? p->starts[r] - at : 0;
        const int64_t to = p->stops[r] - at < BLOCK ? p->stops[r] - at : BLOCK;
        const int64_t groups = (to + SIDE - 1) / SIDE, even = (groups + 1) / 2 * 2;
        find(&s, p, l, r, h, at, groups);
        score(&s, groups, p->size, apart * (int64_t)sizeof(bf16));
        for (int64_t g = 0; g < even; g++) turn(&s, queries, g);
        hide(&s, queries, from, to, even);
        weigh(&s, queries, even, l->scale);
        for (int64_t d = 0; d < p->size; d += 4 * SIDE) {
            const int tiles = p->size - d < 4 * SIDE ? 2 : 4;
            if (tiles == 4)
                unpack(&s, d, 4, from, to, even, apart);
            else
                unpack(&s, d, 2, from, to, even, apart);
            sum_up(&s, queries, d, tiles, even);
        }
    }
    end(&s, l->out + (r * p->kv_heads * p->group + head) * p->size, queries, p->size);
}

void evs_attend(const step *p, const layer *l, int threads) {
#pragma omp parallel num_threads(threads)
    {
        shape_tiles();
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < p->rows * p->kv_heads; task++) {
            const int64_t r = task / p->kv_heads, h = task % p->kv_heads;
            const int64_t to = (p->slots[r] * p->kv_heads + h) * p->size;
            memcpy(l->keys + to, l->k + r * l->k_stride + h * p->size, (size_t)p->size * sizeof(bf16));
            memcpy(l->values + to, l->v + r * l->v_stride + h * p->size, (size_t)p->size * sizeof(bf16));
            for (int64_t first = 0; first < p->group; first += SIDE)
                attend(p, l, r, h, (int)first, (int)(p->group - first < SIDE ? p->group - first : SIDE));
        }
        release_tiles();
    }
}

/* Whether this CPU has tiles, which a process must ask Linux for, and they fit keys of `size` numbers. */
int evs_can_attend(int64_t size, int64_t page_size) {
    enum { ASK_FOR_STATE = 0x1023, TILE_DATA = 18 }; /* arch_prctl */
    unsigned a, b, c, d;
    if (size <= 0 || size > LARGEST || size % WIDE || page_size % SIDE) return 0;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bf16"))
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (1u << 22)) == 0 || (d & (1u << 24)) == 0) return 0;
    return syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
}

#else

void evs_attend(const step *p, const layer *l, int threads) { (void)p, (void)l, (void)threads; }

int evs_can_attend(int64_t size, int64_t page_size) { return size < 0 && page_size < 0; }

#endif
