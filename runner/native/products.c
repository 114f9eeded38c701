/* Products of bfloat16 rows by a weight: y[m][n] = sum over k of x[m][k] * w[n][k], in float32, rounded once at the end. A
 * product of few rows waits for memory: it is read in order here, with hints of what comes next, half as fast again as by
 * what libraries bring. One of many rows waits for caches. No sum depends on the number of threads, nor on other rows.
 *
 * Called through ctypes (runner/products.py). OpenMP's symbols are left to the library that torch has loaded, so that
 * both compute on the same threads. */

#include "product.h"

#ifdef HAS_BF16

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    CHUNK = 192,           /* a multiple of all blocks: most columns of y that a thread takes at a time */
    PANEL_BYTES = 1 << 20, /* of many rows of x, which stay in a second-level cache */
    LEAST_PANEL = 128,     /* rows */
    GROUP = 256            /* columns that a thread takes of them at a time */
};

static int64_t divide(int64_t count, int64_t by) { return (count + by - 1) / by; }

static void multiply_many(const product *p, int threads) {
    const int64_t most = PANEL_BYTES / (p->size * (int64_t)sizeof(bf16));
    const int64_t panels = divide(p->rows, most < LEAST_PANEL ? LEAST_PANEL : most);
    int64_t high = divide(divide(p->rows, panels), 2 * SIDE) * 2 * SIDE, wide = GROUP;
    const int64_t fair = 4 * threads; /* tasks, so that no thread waits long for another */
    while (divide(p->rows, high) * divide(p->width, wide) < fair && wide > 2 * LANES) wide /= 2;
    while (divide(p->rows, high) * divide(p->width, wide) < fair && high > 2 * SIDE)
        high = divide(high / 2, 2 * SIDE) * 2 * SIDE;
    const int64_t groups = divide(p->width, wide), tasks = divide(p->rows, high) * groups;
#pragma omp parallel num_threads(threads)
    {
        shape_tiles(SIDE);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++) {
            const int64_t start = task / groups * high, from = task % groups * wide;
            const int64_t stop = start + high < p->rows ? start + high : p->rows;
            multiply_panel(p, start, stop, from, from + wide < p->width ? from + wide : p->width);
        }
        release_tiles();
    }
}

static void multiply_few(const product *p, int threads, int by_tiles) {
    const int64_t step = p->block ? p->block : 2 * LANES, fair = p->width / (4 * threads) / step * step;
    const int64_t chunk = fair < step ? step : fair < CHUNK ? fair : CHUNK;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t n = 0; n < p->width; n += chunk) {
        const int64_t stop = n + chunk < p->width ? n + chunk : p->width;
        if (!p->block)
            multiply_plain(p, n, stop);
        else if (by_tiles)
            multiply_tiles(p, n, stop);
        else
            multiply_blocks(p, n, stop);
    }
}

/* x (rows, size), bias (width) or none, other (rows, width) for TIMES and PLUS, y (rows, width), all dense. block: see
 * `product`; a multiple of LANES up to 4 of them, and width one of it. A plain weight goes with NOTHING. by_tiles: 0 for
 * vectors; 1 for tiles, size a multiple of 2 * SIDE; 2 for squares of them, 2 * SIDE rows or more, block and width multiples
 * of 2 * LANES. */
void evs_multiply(const bf16 *x, const bf16 *w, const bf16 *bias, const bf16 *other, bf16 *y, int64_t rows,
                  int64_t width, int64_t size, int64_t block, int then, int threads, int by_tiles) {
    const product p = {x, w, bias, other, y, rows, width, size, block, then};
    if (by_tiles == 2)
        multiply_many(&p, threads);
    else
        multiply_few(&p, threads, by_tiles);
}

/* 0: not on this CPU. 1: by vectors. 2: by tiles as well, which a process must ask Linux for. */
int evs_support(void) {
    enum { ASK_FOR_STATE = 0x1023, TILE_DATA = 18 }; /* arch_prctl */
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bf16"))
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (1u << 22)) == 0 || (d & (1u << 24)) == 0) return 1;
    return syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0 ? 2 : 1;
}

#else

void evs_multiply(void) {}

int evs_support(void) { return 0; }

#endif
