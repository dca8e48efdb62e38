/* Transformer kernels for CPUs, called through ctypes.

   One source for all instruction sets: `simd.h` defines operations on 16 numbers, and the kernels
   below do not depend on the set.  The layers that call them are Python;
   tests/unit/models/test_kernels.py has a torch restatement of each kernel.  Matrices are row-major
   float32 with a leading dimension (ld...), the number of floats from one row to the next; a row is
   a token, or a hypothesis at its current step.

   The result of a row depends only on that row, to the last bit: not on the other rows of the call,
   their number, the number of threads or the instruction set.

   Letters: R rows, D inputs, N outputs, B sentences, K hypotheses of a sentence, H query heads,
   G key and value heads, d head width, S source tokens. */

#include <float.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "simd.h"

#define PANEL 32     /* outputs whose weights are next to each other */
#define BLOCK 192    /* rows that stay in the second-level cache between the steps of a kernel */
#define COLUMNS 512  /* logits of a row that stay in cache until they are summed, */
#define FEW 32       /* for this many rows at a time */
#define BLOCK_WIDTH 64  /* logits with a common maximum */
#define HEIGHT 16    /* rows of an AMX tile */
#define STEP 64      /* bytes of a row in an AMX tile */
#define QUERIES 6    /* queries that share a key while it is in a register */
#define WIDE (WIDTH == 16 ? 2 : 1)                    /* sums in registers: this many times 16 outputs */
#define TILE (WIDTH == 16 ? 12 : WIDTH == 8 ? 6 : 5)  /* of this many rows */
#define API __attribute__((visibility("default")))

/* Weights (N, D) in panels of 32 outputs.  Integers: [N/32][D/DEPTH][32][DEPTH], so that the inputs
   that one instruction multiplies are next to each other; D is rounded up to 64.  Floats:
   [N/32][D][32].  Missing outputs and inputs are 0. */
typedef struct {
    size outputs, inputs;
    const int8_t *integers;  /* or NULL */
    const float *floats;     /* or NULL */
    const float *scale;      /* of the integers of each output */
    const int32_t *total;    /* sum of the integers of each output */
    const float *bias;
} Weights;

typedef struct {
    const float *weight, *bias;  /* bias NULL: RMS norm */
    float epsilon;
} Norm;

enum { NONE, RELU, SILU, GELU_SIGMOID, GELU_TANH };

/* ---- Threads ------------------------------------------------------------------------------------

   A task is split into pieces.  The calling thread and its helpers take one piece after another.
   Helpers wait for the next task, first spinning, because it usually follows within microseconds,
   then asleep.  No thread waits for a helper that wakes up late.  The ticket contains the number of
   the task, the number of its pieces and the next piece in one word, so that a late helper cannot
   mistake a piece of one task for a piece of another. */

enum { MAX_HELPERS = 63, SPINS = 4000, PIECE_BITS = 20 };
typedef void Piece(const void *task, size piece);

static struct {
    pthread_mutex_t busy, lock;
    pthread_cond_t wake;
    pid_t process;  /* owner of the helpers; a forked process has none */
    int helpers;
    Piece *piece;
    const void *task;
    atomic_ulong ticket;
    atomic_long done;
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER};

static unsigned long task_number(unsigned long ticket) { return ticket >> 2 * PIECE_BITS; }

static void take_pieces(void) {
    const unsigned long mask = (1ul << PIECE_BITS) - 1;
    for (;;) {
        unsigned long ticket = atomic_fetch_add(&pool.ticket, 1);
        if ((ticket & mask) >= (ticket >> PIECE_BITS & mask)) return;
        pool.piece(pool.task, (size)(ticket & mask));
        atomic_fetch_add(&pool.done, 1);
    }
}

static void *run_helper(void *number) {
    unsigned long seen = (unsigned long)(uintptr_t)number;
    for (;;) {
        for (int i = 0; i < SPINS && task_number(atomic_load(&pool.ticket)) == seen; i++) pause_thread();
        pthread_mutex_lock(&pool.lock);
        while (task_number(atomic_load(&pool.ticket)) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
        pthread_mutex_unlock(&pool.lock);
        seen = task_number(atomic_load(&pool.ticket));
        take_pieces();
    }
    return NULL;
}

static void start_helpers(int wanted) {
    if (pool.process != getpid()) {
        pool.process = getpid();
        pool.helpers = 0;
        pthread_mutex_init(&pool.lock, NULL);
        pthread_cond_init(&pool.wake, NULL);
    }
    while (pool.helpers < wanted && pool.helpers < MAX_HELPERS) {
        pthread_t thread;
        void *seen = (void *)(uintptr_t)task_number(atomic_load(&pool.ticket));
        if (pthread_create(&thread, NULL, run_helper, seen)) break;  /* continue with fewer */
        pthread_detach(thread);
        pool.helpers++;
    }
}

static void run_pieces(size pieces, int threads, Piece *piece, const void *task) {
    int shared = threads > 1 && pieces > 1 && pieces < 1l << PIECE_BITS;
    if (!shared || pthread_mutex_trylock(&pool.busy)) {  /* busy: the helpers work for another thread */
        for (size i = 0; i < pieces; i++) piece(task, i);
        return;
    }
    start_helpers(threads - 1);
    pool.piece = piece;
    pool.task = task;
    atomic_store(&pool.done, 0);
    unsigned long number = task_number(atomic_load(&pool.ticket)) + 1;
    pthread_mutex_lock(&pool.lock);
    atomic_store(&pool.ticket, number << 2 * PIECE_BITS | (unsigned long)pieces << PIECE_BITS);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    take_pieces();
    while (atomic_load(&pool.done) < pieces) pause_thread();
    pthread_mutex_unlock(&pool.busy);
}

/* Memory of the calling thread that grows and is kept: one of SLOTS areas, aligned to 64 bytes */
enum { ROWS_SLOT, STEP_SLOT, HIDDEN_SLOT, KEYS_SLOT, SCORES_SLOT, SLOTS };

static void *scratch(int slot, size bytes) {
    static _Thread_local struct { void *memory; size bytes; } areas[SLOTS];
    if (areas[slot].bytes < bytes) {
        free(areas[slot].memory);
        areas[slot].bytes = (bytes + bytes / 4 + 4095) / 4096 * 4096;
        areas[slot].memory = aligned_alloc(64, (size_t)areas[slot].bytes);
        if (!areas[slot].memory) abort();  /* as Python does if it cannot raise */
    }
    return areas[slot].memory;
}

static size smaller(size a, size b) { return a < b ? a : b; }
static size round_up(size n, size multiple) { return (n + multiple - 1) / multiple * multiple; }

/* Prefetch n numbers whose address the processor does not predict, to the second-level cache: few
   requests of the first can wait at a time */
INLINE void prefetch(const float *x, size n) {
    for (size i = 0; i < n; i += 16) __builtin_prefetch(x + i, 0, 2);
}

/* ---- Activation, norm and quantization ---------------------------------------------------------- */

/* Apply an activation to n rows of `width` numbers, in place */
static void activate(float *x, size ld, size n, size width, size activation) {
    for (size r = 0; r < n; r++)
        for (size i = 0; i < width; i += 16) {
            Floats v = load(x + r * ld + i, width - i), y = v;
            if (activation == GELU_SIGMOID) y = mul(v, all(1.702f));
            if (activation == GELU_TANH) {  /* 1 + tanh(z) = 2 sigmoid(2 z) */
                y = mul_add(mul(mul(v, v), v), all(0.044715f), v);
                y = mul(y, all(1.5957691216f));  /* 2 sqrt(2 / pi) */
            }
            store(x + r * ld + i, width - i, mul_sigmoid(v, y));
        }
}

static void norm_row(const float *x, float *out, size n, const Norm *norm) {
    Floats sum = all(0.f), squares = all(0.f), mean = all(0.f);
    if (norm->bias) {
        for (size i = 0; i < n; i += 16) sum = add(sum, load(x + i, n - i));
        mean = all(sum_of(sum) / (float)n);
    }
    for (size i = 0; i < n; i += 16) {
        Floats centered = keep(sub(load(x + i, n - i), mean), n - i);
        squares = mul_add(centered, centered, squares);
    }
    Floats scale = all(1 / sqrtf(sum_of(squares) / (float)n + norm->epsilon));
    for (size i = 0; i < n; i += 16) {
        Floats v = mul(sub(load(x + i, n - i), mean), scale);
        Floats bias = norm->bias ? load(norm->bias + i, n - i) : all(0.f);
        store(out + i, n - i, mul_add(v, load(norm->weight + i, n - i), bias));
    }
}

typedef struct { const float *x; size rows, d; const Norm *norm; float *out; } NormTask;

static void norm_piece(const void *task, size piece) {
    const NormTask *t = task;
    for (size r = piece * BLOCK; r < smaller((piece + 1) * BLOCK, t->rows); r++)
        norm_row(t->x + r * t->d, t->out + r * t->d, t->d, t->norm);
}

/* out (R, D) = norm(x) */
API void normalize(const float *x, size rows, size d, const Norm *norm, float *out, int threads) {
    run_pieces((rows + BLOCK - 1) / BLOCK, threads, norm_piece, &(NormTask){x, rows, d, norm, out});
}

/* Rows as inputs of a product: integers that are (number / step + zero), or floats */
typedef struct {
    const void *rows;
    size ld;  /* in numbers */
    const float *step;
    int zero;
    const int32_t *shortfall;  /* of the sums of each row, see `narrow` */
} Inputs;

/* Quantize a row to 8 bits, with zeros behind it up to a multiple of 16.  Returns the step; NaN if a number
   is not finite, so that all outputs of the row become NaN. */
static float quantize(const float *x, size n, int positive, Input *out, int32_t *shortfall) {
    Ints top = all_ints(0);  /* without signs, floats are ordered like their bits */
    for (size i = 0; i < n; i += 16) {
        Ints v = bits(load(x + i, n - i));
        top = EACH(Ints, reg_max_int(top.part[p], v.part[p] & INT32_MAX));
    }
    int32_t tops[16], largest_bits = 0;
    memcpy(tops, &top, sizeof tops);
    for (int i = 0; i < 16; i++) largest_bits = tops[i] > largest_bits ? tops[i] : largest_bits;
    float largest, range = positive ? 255.f : 127.f;
    memcpy(&largest, &largest_bits, 4);
    Floats factor = all(largest > 1e-30f ? range / largest : 0.f);
    Floats zero = all(ROUNDING + (float)((positive ? 0 : 128) - INPUT_ZERO));
    *shortfall = 0;
    for (size i = 0; i < n; i += 16)  /* a row has room for a multiple of 16 */
        *shortfall += narrow(bits(keep(add(mul(load(x + i, n - i), factor), zero), n - i)), out + i);
    return largest / range + largest * 0;
}

/* Return n rows as the inputs of a layer, after `norm` if it is not NULL */
static Inputs prepare(const float *x, size ldx, size n, const Weights *w, const Norm *norm, int positive) {
    size d = w->inputs;
    if (!w->integers && !norm) return (Inputs){x, ldx, NULL, 0, NULL};
    if (!w->integers) {
        float *rows = scratch(ROWS_SLOT, n * d * 4);
        for (size r = 0; r < n; r++) norm_row(x + r * ldx, rows + r * d, d, norm);
        return (Inputs){rows, d, NULL, 0, NULL};
    }
    size ld = round_up(d, STEP);
    if (ld % 256 == 0) ld += 64;  /* or rows would share the sets of the first-level cache */
    Input *rows = scratch(ROWS_SLOT, round_up(n, 2 * HEIGHT) * ld * (size)sizeof(Input));  /* for whole tiles */
    float *step = scratch(STEP_SLOT, (2 * n + d) * 4), *normed = step + 2 * n;
    int32_t *shortfall = (int32_t *)(step + n);
    for (size r = 0; r < n; r++) {
        const float *row = x + r * ldx;
        if (norm) norm_row(row, normed, d, norm), row = normed;
        step[r] = quantize(row, d, positive, rows + r * ld, shortfall + r);
    }
    return (Inputs){rows, ld, step, (positive ? 0 : 128) - INPUT_ZERO, shortfall};
}

/* ---- Products ----------------------------------------------------------------------------------- */

/* The destination of a product: out = activation(sum), or residual + sum */
typedef struct {
    size activation;
    const float *residual;  /* has the layout of `out`, and may be the same memory */
    float *out;
    size ld;
} Outputs;

/* The smallest number that a product stores.  Activations other than ReLU are applied later. */
INLINE Floats lower_bound(const Outputs *to) { return all(to->activation == RELU ? 0.f : -INFINITY); }

INLINE void finish(Floats v, Floats bound, size at, size left, const Outputs *to) {
    if (to->residual) v = add(v, load(to->residual + at, left));
    store(to->out + at, left, max(bound, v));  /* NaN stays */
}

/* Integer sums start here, without the part that is due to the zero of the inputs */
INLINE Ints first_sums(const Weights *w, size at, int zero) { return mul_int(load_ints(w->total + at), -zero); }

INLINE Floats dequantize(Ints sums, Floats scale, float step, Floats bias) {
    return mul_add(mul(to_floats(sums), scale), all(step), bias);
}

/* Multiply n rows from row r on by WIDE * 16 outputs from output o on, and prefetch the weights of the next panel */
INLINE void int_tile(const int n, const Inputs *in, size r, const Weights *w, size o, const Outputs *to) {
    size groups = round_up(w->inputs, DEPTH) / DEPTH, next = PANEL * round_up(w->inputs, STEP);
    const Input *x = (const Input *)in->rows + r * in->ld;
    const int8_t *panel = w->integers + o / PANEL * next + o % PANEL * DEPTH;
    Ints sums[TILE][WIDE];
    UNROLL for (int h = 0; h < WIDE; h++) {
        Ints first = first_sums(w, o + 16 * h, in->zero);
        UNROLL for (int i = 0; i < n; i++) sums[i][h] = EACH(Ints, first.part[p] + in->shortfall[r + i]);
    }
    for (size k = 0; k < groups; k++) {
        Ints weights[WIDE];
        UNROLL for (int h = 0; h < WIDE; h++) weights[h] = load_ints(panel + (k * PANEL + 16 * h) * DEPTH);
        prefetch((const float *)(panel + next + k * PANEL * DEPTH), 16 * WIDE);
        UNROLL for (int i = 0; i < n; i++)
            UNROLL for (int h = 0; h < WIDE; h++) sums[i][h] = dot(sums[i][h], x + i * in->ld + DEPTH * k, weights[h]);
    }
    Floats bound = lower_bound(to);
    UNROLL for (int h = 0; h < WIDE; h++) {
        size at = o + 16 * h, left = w->outputs - at;
        if (left <= 0) break;
        Floats scale = load_all(w->scale + at), bias = load_all(w->bias + at);
        UNROLL for (int i = 0; i < n; i++) {
            Floats v = dequantize(sums[i][h], scale, in->step[r + i], bias);
            finish(v, bound, (r + i) * to->ld + at, left, to);
        }
    }
}

INLINE void float_tile(const int n, const Inputs *in, size r, const Weights *w, size o, const Outputs *to) {
    const float *x = (const float *)in->rows + r * in->ld;
    const float *panel = w->floats + o / PANEL * PANEL * w->inputs + o % PANEL;
    Floats sums[TILE][WIDE];
    UNROLL for (int i = 0; i < n; i++)
        UNROLL for (int h = 0; h < WIDE; h++) sums[i][h] = all(0.f);
    for (size k = 0; k < w->inputs; k++) {
        Floats weights[WIDE];
        UNROLL for (int h = 0; h < WIDE; h++) weights[h] = load_all(panel + k * PANEL + 16 * h);
        UNROLL for (int i = 0; i < n; i++) {
            Floats input = all(x[i * in->ld + k]);
            UNROLL for (int h = 0; h < WIDE; h++) sums[i][h] = mul_add(input, weights[h], sums[i][h]);
        }
    }
    Floats bound = lower_bound(to);
    UNROLL for (int h = 0; h < WIDE; h++) {
        size at = o + 16 * h, left = w->outputs - at;
        if (left <= 0) break;
        Floats bias = load_all(w->bias + at);
        UNROLL for (int i = 0; i < n; i++)
            finish(add(sums[i][h], bias), bound, (r + i) * to->ld + at, left, to);
    }
}

/* Multiply `rows` <= TILE rows.  The compiler knows the number of rows in each case. */
static void multiply_tile(size rows, const Inputs *in, size r, const Weights *w, size o, const Outputs *to) {
    switch (rows) {
#define CASE(n) case n: return w->integers ? int_tile(n, in, r, w, o, to) : float_tile(n, in, r, w, o, to);
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5)
#if WIDTH >= 8
        CASE(6)
#endif
#if WIDTH == 16
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
#undef CASE
    }
}

/* ---- Integer products with AMX, in tiles of 16 rows --------------------------------------------- */

#ifdef SET_AVX512

static int has_amx;  /* set by `enable` */

/* Multiply n <= 32 rows from row r on by a panel.  Tiles 0 to 3 are the sums, 4 and 5 the inputs, 6
   and 7 the weights.  With 16 rows or fewer the lower tiles are not used. */
static void amx_rows(const Inputs *in, size r, size n, const Weights *w, size o, const Outputs *to) {
    const uint8_t *x = (const uint8_t *)in->rows + r * in->ld, *lower = x + HEIGHT * in->ld;
    size depth = round_up(w->inputs, STEP);
    const int8_t *panel = w->integers + o * depth;
    _Alignas(64) int32_t sums[2 * HEIGHT][PANEL];
    for (int h = 0; h < 2; h++) {
        Ints first = first_sums(w, o + 16 * h, in->zero);
        memcpy(sums[0] + 16 * h, &first, sizeof first);
    }
    _tile_loadd(0, sums[0], 0);  /* the same sums in each row */
    _tile_loadd(1, sums[0] + 16, 0);
    _tile_loadd(2, sums[0], 0);
    _tile_loadd(3, sums[0] + 16, 0);
    for (size k = 0; k < depth; k += STEP) {
        _tile_loadd(4, x + k, in->ld);
        _tile_loadd(6, panel + k * PANEL, 4 * PANEL);
        _tile_dpbusd(0, 4, 6);
        _tile_loadd(7, panel + k * PANEL + 64, 4 * PANEL);
        _tile_dpbusd(1, 4, 7);
        if (n <= HEIGHT) continue;
        _tile_loadd(5, lower + k, in->ld);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + 16, sizeof sums[0]);
    if (n > HEIGHT) {
        _tile_stored(2, sums[HEIGHT], sizeof sums[0]);
        _tile_stored(3, sums[HEIGHT] + 16, sizeof sums[0]);
    }
    Floats bound = lower_bound(to);
    for (int h = 0; h < 2; h++) {
        size at = o + 16 * h, left = w->outputs - at;
        if (left <= 0) break;
        Floats scale = load_all(w->scale + at), bias = load_all(w->bias + at);
        for (size i = 0; i < n; i++) {
            Floats v = dequantize(load_ints(sums[i] + 16 * h), scale, in->step[r + i], bias);
            finish(v, bound, (r + i) * to->ld + at, left, to);
        }
    }
}

/* All tiles have 16 rows of 64 bytes */
static void configure_tiles(void) {
    struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.bytes[i] = STEP, config.rows[i] = HEIGHT;
    _tile_loadconfig(&config);
}

#else
enum { has_amx = 0 };
static void amx_rows(const Inputs *in, size r, size n, const Weights *w, size o, const Outputs *to) {}
static void configure_tiles(void) {}
#define _tile_release() ((void)0)
#endif

/* Multiply n rows from row `first` on by the outputs from `begin` to `end`, one panel after another: a
   panel stays in the first-level cache while all rows pass */
static void multiply(const Inputs *in, size first, size n, const Weights *w, size begin, size end,
                     const Outputs *to) {
    int uses_amx = w->integers && has_amx && n >= HEIGHT / 2;  /* few rows leave most of a tile empty */
    if (uses_amx) configure_tiles();
    for (size o = begin; o < end; o += PANEL) {
        for (size r = first, rows; r < first + n; r += rows) {
            rows = smaller(uses_amx ? 2 * HEIGHT : TILE, first + n - r);
            for (size i = 0; i < rows; i++) prefetch(to->out + (r + i) * to->ld + o, PANEL);
            for (size i = 0; to->residual && i < rows; i++) prefetch(to->residual + (r + i) * to->ld + o, PANEL);
            if (uses_amx) amx_rows(in, r, rows, w, o, to);
            for (size h = 0; !uses_amx && h < PANEL && o + h < w->outputs; h += WIDE * 16)
                multiply_tile(rows, in, r, w, o + h, to);
        }
        if (to->activation > RELU)
            activate(to->out + first * to->ld + o, to->ld, n, smaller(PANEL, w->outputs - o), to->activation);
    }
    if (uses_amx) _tile_release();
}

/* ---- Linear layers --------------------------------------------------------------------------- */

/* Size in bytes of N x D packed weights */
API size packed_size(size outputs, size inputs, int as_integers) {
    return round_up(outputs, PANEL) * (as_integers ? round_up(inputs, STEP) : inputs * 4);
}

/* Pack weights (N, D) in the order of `Weights`: as floats, or as integers if `scale` and `total` (N,
   rounded up to 32) are not NULL.  All memory must be zero before. */
API void pack(const float *weight, size outputs, size inputs, void *packed, float *scale, int32_t *total) {
    size depth = round_up(inputs, STEP);
    for (size o = 0; o < outputs; o++) {
        const float *row = weight + o * inputs;
        if (!scale) {
            float *to = (float *)packed + o / PANEL * inputs * PANEL + o % PANEL;
            for (size k = 0; k < inputs; k++) to[k * PANEL] = row[k];
            continue;
        }
        float largest = 0;
        for (size k = 0; k < inputs; k++) largest = fabsf(row[k]) > largest ? fabsf(row[k]) : largest;
        float not_finite = 0;  /* NaN if a weight is */
        for (size k = 0; k < inputs; k++) not_finite += row[k] * 0;
        scale[o] = (largest > 1e-30f ? largest : 1e-30f) / 127 + not_finite;
        int8_t *to = (int8_t *)packed + o / PANEL * PANEL * depth + o % PANEL * DEPTH;
        for (size k = 0; not_finite == 0 && k < inputs; k++) {
            int rounded = (int)nearbyintf(row[k] / scale[o]);
            to[k / DEPTH * PANEL * DEPTH + k % DEPTH] = (int8_t)rounded;
            total[o] += rounded;
        }
    }
}

/* out (R, N) = [residual +] activation([norm](x) W + b); x (R, D).  A feed-forward layer multiplies by `up`,
   applies the activation and multiplies by `down`; its hidden units stay in the cache. */
typedef struct {
    size rows, block;  /* block: rows of a piece, set by `compute_layer` */
    const float *x;
    const Weights *up, *down;  /* down NULL: linear layer */
    const Norm *norm;          /* or NULL */
    size activation;
    const float *residual;     /* (R, N) or NULL */
    float *out;
} Layer;

static void layer_piece(const void *task, size piece) {
    const Layer *l = task;
    size r = piece * l->block, n = smaller(l->block, l->rows - r), d = l->up->inputs;
    const Weights *last = l->down ? l->down : l->up;
    Inputs in = prepare(l->x + r * d, d, n, l->up, l->norm, 0);
    Outputs to = {l->activation, l->residual, l->out + r * last->outputs, last->outputs};
    if (to.residual) to.residual += r * to.ld;
    if (l->down) {
        size ldh = l->up->outputs + 16;
        Outputs hidden = {l->activation, NULL, scratch(HIDDEN_SLOT, n * ldh * 4), ldh};
        multiply(&in, 0, n, l->up, 0, l->up->outputs, &hidden);
        in = prepare(hidden.out, ldh, n, l->down, NULL, l->activation == RELU);
        to.activation = NONE;
    }
    multiply(&in, 0, n, last, 0, last->outputs, &to);
}

API void compute_layer(const Layer *layer, int threads) {
    Layer task = *layer;
    size share = round_up((task.rows + threads - 1) / threads, TILE);  /* rows of each thread */
    task.block = task.rows ? smaller(share, task.down ? BLOCK / 2 : BLOCK) : 1;
    run_pieces((task.rows + task.block - 1) / task.block, threads, layer_piece, &task);
}

/* ---- Head: logits, their log-sum-exp, and the best continuations of hypotheses --------------------- */

/* The K hypotheses of each of B sentences, and their n best continuations by another token (B, n): highest
   score first, ties by lower hypothesis and token */
typedef struct {
    size sentences, hypotheses, n;
    const int32_t *row;  /* (B, K) the row of each hypothesis; equal hypotheses may share a row */
    const float *score;  /* (B, K) */
    size n_masked, n_ends;
    const size *masked;   /* (n_masked) tokens that some hypotheses must not take, */
    const uint8_t *mask;  /* (B, K, n_masked) 1 for these hypotheses */
    const size *ends;     /* (n_ends) tokens that end a hypothesis */
    float *new_score, *log_prob;
    size *parent, *token;  /* a parent is a hypothesis of the batch: b * K + k */
    uint8_t *ended;
} Beams;

typedef struct {
    const Inputs *in;
    size rows, n_blocks;
    const Weights *w;
    float *logits;  /* (R, N) or NULL */
    float *maxima;  /* (R, n_blocks), each of BLOCK_WIDTH logits */
    float *tops;    /* (pieces, R), each of COLUMNS logits, */
    double *sums;   /* and their sum of e^(logit - top) */
    float *log_z;   /* (R) log-sum-exp */
    const Beams *beams;
} Head;

/* Return the largest of n numbers, ignoring NaN */
INLINE float find_max(const float *x, size n) {
    Floats largest = all(-INFINITY);
    size i = 0;
    for (; i + 16 <= n; i += 16) largest = max(load_all(x + i), largest);
    float found = max_of(largest);
    for (; i < n; i++) found = x[i] > found ? x[i] : found;
    return found;
}

INLINE Floats exp_below(const float *x, Floats top) { return exp_negative(sub(load_all(x), top)); }

/* Return the sum of e^(number - top), in double precision because one large number and many small ones
   are common.  NaN if a number is NaN. */
INLINE double sum_exp(const float *x, size n, float largest) {
    DoubleReg sums[2 * PARTS] = {{0}};  /* 16 sums */
    Floats top = all(largest);
    for (size i = 0, step; i < n; i += step) {
        step = i + 64 <= n ? 64 : 16;
        Floats sum = keep(exp_negative(sub(load(x + i, n - i), top)), n - i);
        if (step == 64)
            sum = add(add(sum, exp_below(x + i + 16, top)),
                      add(exp_below(x + i + 32, top), exp_below(x + i + 48, top)));
        float numbers[16];
        store_all(numbers, sum);
        UNROLL for (int j = 0; j < 2 * PARTS; j++) sums[j] += load_doubles(numbers + j * WIDTH / 2);
    }
    double numbers[16];
    memcpy(numbers, sums, sizeof numbers);
    for (int half = 8; half; half /= 2)
        for (int j = 0; j < half; j++) numbers[j] += numbers[j + half];
    return numbers[0];
}

/* Combine n sums of e^(number - top), `stride` apart in memory, to a log-sum-exp */
static float combine_sums(const float *tops, const double *sums, size n, size stride) {
    float top = -INFINITY;
    double sum = 0;
    for (size p = 0; p < n; p++) top = fmaxf(top, tops[p * stride]);
    for (size p = 0; p < n; p++) sum += sums[p * stride] * exp((double)tops[p * stride] - top);
    float found = (float)(top + log(sum));
    return found < -FLT_MAX ? -FLT_MAX : found;  /* NaN stays */
}

/* Compute COLUMNS logits of all rows, their maxima, and the sum of e^(logit - top).  Logits stay in the
   cache unless the caller wants them. */
static void head_piece(const void *task, size piece) {
    const Head *h = task;
    size begin = piece * COLUMNS, n = smaller(COLUMNS, h->w->outputs - begin);
    for (size r0 = 0; r0 < h->rows; r0 += FEW) {
        size rows = smaller(FEW, h->rows - r0);
        Outputs to = {NONE, NULL, h->logits, h->w->outputs};
        if (!h->logits) {
            to.ld = COLUMNS;
            to.out = (float *)scratch(SCORES_SLOT, FEW * COLUMNS * 4) - r0 * to.ld - begin;
        }
        multiply(h->in, r0, rows, h->w, begin, begin + n, &to);
        for (size r = r0; r < r0 + rows; r++) {
            const float *logits = to.out + r * to.ld + begin;
            float *maxima = h->maxima + r * h->n_blocks + begin / BLOCK_WIDTH;
            float top = -FLT_MAX;  /* if all are -inf */
            for (size b = 0; b < n; b += BLOCK_WIDTH) {
                float found = find_max(logits + b, smaller(BLOCK_WIDTH, n - b));
                maxima[b / BLOCK_WIDTH] = found;
                top = found > top ? found : top;
            }
            h->tops[piece * h->rows + r] = top;
            h->sums[piece * h->rows + r] = sum_exp(logits, n, top);
        }
    }
}

typedef struct {
    float score, log_prob;
    size index;  /* k * N + token, or k * N + first token of a block */
} Candidate;

INLINE int comes_before(Candidate a, Candidate b) {
    return a.score > b.score || (a.score == b.score && a.index < b.index);
}

/* Insert a candidate into the sorted list of the `count` <= n best; returns the new count */
INLINE size insert(Candidate *best, size count, size n, Candidate candidate) {
    if (count == n && !comes_before(candidate, best[n - 1])) return n;
    size i = count < n ? count : n - 1;
    for (; i > 0 && comes_before(candidate, best[i - 1]); i--) best[i] = best[i - 1];
    best[i] = candidate;
    return count < n ? count + 1 : n;
}

/* Block j of hypothesis k, with the score of its best token */
INLINE Candidate block_at(const Head *h, size hypothesis, size k, size j) {
    size r = h->beams->row[hypothesis];
    float score = h->maxima[r * h->n_blocks + j] - h->log_z[r] + h->beams->score[hypothesis];
    return (Candidate){score, 0, k * h->w->outputs + j * BLOCK_WIDTH};
}

/* Insert the tokens of a block.  To compute its logits again is cheaper than to store all logits. */
static size insert_block(const Head *h, size b, Candidate block, Candidate *best, size count) {
    const Beams *beams = h->beams;
    size hypothesis = b * beams->hypotheses + block.index / h->w->outputs, r = beams->row[hypothesis];
    size begin = block.index % h->w->outputs, end = smaller(begin + BLOCK_WIDTH, h->w->outputs);
    float logits[BLOCK_WIDTH];
    Outputs to = {NONE, NULL, logits - begin, 0};  /* one row, so that its distance does not matter */
    for (size o = begin; o < end; o += WIDE * 16) multiply_tile(1, h->in, r, h->w, o, &to);
    for (size m = 0; m < beams->n_masked; m++)
        if (beams->masked[m] >= begin && beams->masked[m] < end && beams->mask[hypothesis * beams->n_masked + m])
            logits[beams->masked[m] - begin] = -INFINITY;
    for (size v = begin; v < end; v++) {
        float log_prob = logits[v - begin] - h->log_z[r];
        Candidate candidate = {log_prob + beams->score[hypothesis], log_prob, block.index - begin + v};
        count = insert(best, count, beams->n, candidate);
    }
    return count;
}

/* Find the n best continuations of sentence b.  They are in its n best blocks: a block that is not one of
   them comes after n blocks, each with a token that comes before all of its tokens. */
static void rank_piece(const void *task, size b) {
    const Head *h = task;
    const Beams *beams = h->beams;
    size n = beams->n, hypotheses = beams->hypotheses, first = b * hypotheses, n_found = 0, count = 0;
    Candidate *found = scratch(SCORES_SLOT, 2 * n * (size)sizeof(Candidate)), *best = found + n;
    float nan = 0;
    for (size k = 0; k < hypotheses; k++) {
        float score = beams->score[first + k] - h->log_z[beams->row[first + k]];
        if (score != score) nan = score;
        for (size j = 0; j < h->n_blocks; j++) n_found = insert(found, n_found, n, block_at(h, first + k, k, j));
    }
    for (size i = 0; nan == 0 && i < n_found; i++)
        if (count < n || found[i].score >= best[n - 1].score) count = insert_block(h, b, found[i], best, count);
    /* The maxima include masked tokens, so that tokens of other blocks may be among the best */
    for (size i = 0; nan == 0 && beams->n_masked && i < hypotheses * h->n_blocks; i++) {
        Candidate block = block_at(h, first + i / h->n_blocks, i / h->n_blocks, i % h->n_blocks);
        if (comes_before(found[n_found - 1], block) && block.score >= best[count - 1].score)
            count = insert_block(h, b, block, best, count);
    }
    for (size i = 0; i < n; i++) {
        Candidate found = nan == 0 ? best[i] : (Candidate){nan, nan, 0};
        size at = b * n + i, token = found.index % h->w->outputs;
        beams->new_score[at] = found.score;
        beams->log_prob[at] = found.log_prob;
        beams->parent[at] = first + found.index / h->w->outputs;
        beams->token[at] = token;
        beams->ended[at] = 0;
        for (size e = 0; e < beams->n_ends; e++) beams->ended[at] |= beams->ends[e] == token;
    }
}

/* Compute the logits (R, N) of [norm](x), x (R, D), if `logits` is not NULL; their log-sum-exp (R), in an
   order that does not depend on the threads; and the best continuations if `beams` is not NULL */
API void head(const float *x, size ldx, size rows, const Weights *w, const Norm *norm, float *logits,
              float *log_z, const Beams *beams, int threads) {
    size pieces = (w->outputs + COLUMNS - 1) / COLUMNS, n_blocks = (w->outputs + BLOCK_WIDTH - 1) / BLOCK_WIDTH;
    Inputs in = prepare(x, ldx, rows, w, norm, 0);
    double *sums = scratch(HIDDEN_SLOT, rows * (pieces * 12 + n_blocks * 4));
    float *tops = (float *)(sums + pieces * rows);
    Head task = {&in, rows, n_blocks, w, logits, tops + pieces * rows, tops, sums, log_z, beams};
    run_pieces(pieces, threads, head_piece, &task);
    for (size r = 0; r < rows; r++) log_z[r] = combine_sums(tops + r, sums + r, pieces, rows);
    if (beams) run_pieces(beams->sentences, threads, rank_piece, &task);
}

typedef struct {
    const float *x;
    size n;
    float *out;
} LogSums;

static void log_sums_piece(const void *task, size r) {
    const LogSums *l = task;
    size pieces = (l->n + COLUMNS - 1) / COLUMNS;
    double *sums = scratch(HIDDEN_SLOT, pieces * 12);
    float *tops = (float *)(sums + pieces);
    for (size p = 0; p < pieces; p++) {
        const float *x = l->x + r * l->n + p * COLUMNS;
        size n = smaller(COLUMNS, l->n - p * COLUMNS);
        float top = find_max(x, n);
        tops[p] = top < -FLT_MAX ? -FLT_MAX : top;
        sums[p] = sum_exp(x, n, tops[p]);
    }
    l->out[r] = combine_sums(tops, sums, pieces, 1);
}

/* Compute the log-sum-exp of the rows of x (R, N), in the same order as `head` */
API void log_sums(const float *x, size rows, size n, float *out, int threads) {
    LogSums task = {x, n, out};
    run_pieces(rows, threads, log_sums_piece, &task);
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* Turn n scores into weights that add up to 1; there is room for a multiple of 16 */
INLINE void softmax(float *scores, size n) {
    Floats sum = all(0.f), top = all(find_max(scores, n));
    for (size s = 0; s < n; s += 16) {
        Floats e = keep(exp_negative(sub(load(scores + s, n - s), top)), n - s);
        sum = add(sum, e);
        store_all(scores + s, e);
    }
    Floats share = all(1 / sum_of(sum));
    for (size s = 0; s < n; s += 16) store_all(scores + s, mul(share, load_all(scores + s)));
}

/* Arguments of attention, and its result (R, H d).  Each sentence has the rows from its start to the next.
   Self-attention also reads new keys and values in the rows of q: (R, (H + 2 G) d). */
typedef struct {
    size sentences, heads, groups, width;
    const size *starts;  /* (B + 1) */
    const float *q;      /* (R, H d) */
    float *keys;         /* of the memory (B, G, d, S), or the cache: keys and values (capacity, 2, G, d) */
    const float *values; /* of the memory (B, G, S, d) */
    size length;         /* S, or the most entries of a past */
    const size *lengths;     /* (B) of the sentences in the memory */
    float *weights;          /* (R, H, S) of the memory, 0 on padding, or NULL */
    size hypotheses;         /* K */
    const int32_t *entries;  /* (B, K, length) the past of each hypothesis in the cache */
    const int32_t *counts;   /* (B, K) its length */
    const int32_t *new_entries;  /* (R) the entry of each row's keys and values */
    float *out;
} Attention;

/* The queries of a sentence and a head (.., ldq) with transposed keys (d, ldk) and values (S, ldv).  The
   weights are written to scores (.., S rounded up to 16), the result to out (.., ldo).  The next keys and
   values to prefetch are `next` numbers further. */
typedef struct {
    const float *q, *keys, *values;
    size ldq, ldk, ldv, length, width, next;
    float *scores, *out;
    size ldo;
} HeadAttention;

/* Compute attention of n queries from query i on */
INLINE void attend_few(const int n, size i, const HeadAttention *h) {
    size length = h->length, d = h->width, lds = round_up(length, 16), next = i ? 0 : h->next;
    size ldq = h->ldq, ldk = h->ldk, ldv = h->ldv, ldo = h->ldo;
    const float *q = h->q + i * ldq, *keys = h->keys, *values = h->values;
    float *scores = h->scores + i * lds, *out = h->out + i * ldo;
    Floats scale = all(1 / sqrtf((float)d));
    for (size s = 0; s < length; s += 16) {
        Floats sums[QUERIES];
        for (int r = 0; r < n; r++) sums[r] = all(0.f);
        for (size j = 0; j < d; j++) {
            Floats key = load(keys + j * ldk + s, length - s);
            prefetch(keys + next + j * ldk + s, 16);
            UNROLL for (int r = 0; r < n; r++) sums[r] = mul_add(all(q[r * ldq + j]), key, sums[r]);
        }
        for (int r = 0; r < n; r++) store_all(scores + r * lds + s, mul(sums[r], scale));
    }
    for (int r = 0; r < n; r++) softmax(scores + r * lds, length);
    for (size j = 0; j < d; j += 16) {
        Floats sums[QUERIES];
        for (int r = 0; r < n; r++) sums[r] = all(0.f);
        for (size s = 0; s < length; s++) {
            Floats value = load(values + s * ldv + j, d - j);
            prefetch(values + next + s * ldv + j, 16);
            UNROLL for (int r = 0; r < n; r++) sums[r] = mul_add(all(scores[r * lds + s]), value, sums[r]);
        }
        for (int r = 0; r < n; r++) store(out + r * ldo + j, d - j, sums[r]);
    }
}

static void attend(size n, const HeadAttention *h) {
    for (size i = 0; i < n; i += QUERIES)
        switch (smaller(QUERIES, n - i)) {
#define CASE(n) case n: attend_few(n, i, h); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#undef CASE
        }
}

static void attend_self_piece(const void *task, size b) {
    const Attention *a = task;
    size start = a->starts[b], n = a->starts[b + 1] - start, d = a->width, ldk = round_up(n, 16);
    size ldq = (a->heads + 2 * a->groups) * d, ldo = a->heads * d;
    float *keys = scratch(KEYS_SLOT, d * ldk * 4), *scores = scratch(SCORES_SLOT, n * ldk * 4);
    for (size h = 0; h < a->heads; h++) {
        const float *rows = a->q + start * ldq, *new_keys = rows + (a->heads + h * a->groups / a->heads) * d;
        for (size s = 0; s < n; s++)
            UNROLL for (size j = 0; j < d; j++) keys[j * ldk + s] = new_keys[s * ldq + j];
        attend(n, &(HeadAttention){rows + h * d, keys, new_keys + a->groups * d, ldq, ldk, ldq, n, d, 0, scores,
                                   a->out + start * ldo + h * d, ldo});
    }
}

/* Self-attention of sentences that lie one after the other without padding */
API void attend_self(const Attention *a, int threads) { run_pieces(a->sentences, threads, attend_self_piece, a); }

static void attend_memory_piece(const void *task, size b) {
    const Attention *a = task;
    size start = a->starts[b], n = a->starts[b + 1] - start, d = a->width, s = a->length, ld = a->heads * d;
    size length = a->lengths[b], lds = round_up(length, 16);
    float *scores = scratch(SCORES_SLOT, n * lds * 4);
    for (size h = 0; h < a->heads; h++) {
        size memory = (b * a->groups + h * a->groups / a->heads) * d * s, at = start * ld + h * d;
        attend(n, &(HeadAttention){a->q + at, a->keys + memory, a->values + memory, ld, s, d, length, d, d * s,
                                   scores, a->out + at, ld});
        for (size i = 0; a->weights && i < n; i++) {
            float *to = a->weights + ((start + i) * a->heads + h) * s;
            memcpy(to, scores + i * lds, (size_t)length * 4);
            memset(to + length, 0, (size_t)(s - length) * 4);
        }
    }
}

/* Attention to the memory of the sentences */
API void attend_memory(const Attention *a, int threads) { run_pieces(a->sentences, threads, attend_memory_piece, a); }

/* ---- Cached self-attention ------------------------------------------------------------------------ */

/* Continue the past of the K hypotheses of B sentences by a step.  The past of a hypothesis is a list of
   entries in the order of steps: that of its parent, parents (B, K), in old (.., ld_old) with old_counts
   entries, and a new one.  Each row (rows `starts` (B + 1)) gets a new entry, new_entries (R): in order the
   first that are in no list.  If a sentence has one row for all hypotheses, they share its entry.  All old
   entries are smaller than `capacity`; a new one may be larger.  Writes the lists to entries (B, K, lde)
   and their lengths to counts (B, K). */
API void advance_past(size sentences, size hypotheses, const size *parents, const size *starts, size capacity,
                      const int32_t *old, size ld_old, const int32_t *old_counts, int32_t *entries, size lde,
                      int32_t *counts, int32_t *new_entries) {
    size n_used = capacity + starts[sentences], next = 0;
    char *used = memset(scratch(SCORES_SLOT, n_used), 0, (size_t)n_used);
    for (size r = 0; r < sentences * hypotheses; r++) {
        counts[r] = old_counts[parents[r]];
        for (size e = 0; e < counts[r]; e++) used[entries[r * lde + e] = old[parents[r] * ld_old + e]] = 1;
    }
    for (size b = 0; b < sentences; b++) {
        size start = starts[b], n = starts[b + 1] - start;
        for (size i = start; i < start + n; i++) {
            while (used[next]) next++;
            new_entries[i] = (int32_t)next++;
        }
        for (size k = 0; k < hypotheses; k++) {
            size r = b * hypotheses + k;
            entries[r * lde + counts[r]++] = new_entries[start + smaller(k, n - 1)];
        }
    }
}

INLINE Floats product(const size d, const float *q, const float *key) {
    Floats sum = mul(load(q, d), load(key, d));
    for (size j = 16; j < d; j += 16) sum = mul_add(load(q + j, d - j), load(key + j, d - j), sum);
    return sum;
}

/* Attention of one query to the n entries of its past in keys and values (capacity, ld) */
INLINE void attend_past(const size d, const float *q, const float *keys, const float *values, size ld,
                        const int32_t *entries, size n, float *scores, float *out) {
    float scale = 1 / sqrtf((float)d);
    for (size e = 0; e < n; e += 4) {
        const float *key[4];
        for (int i = 0; i < 4; i++) key[i] = keys + entries[e + i < n ? e + i : e] * ld;
        Four four = sums_of_four(product(d, q, key[0]), product(d, q, key[1]), product(d, q, key[2]),
                                 product(d, q, key[3])) * scale;
        memcpy(scores + e, &four, sizeof four);
    }
    softmax(scores, n);
    for (size j = 0; j < d; j += 64) {  /* 64 sums at a time */
        Floats sums[4] = {all(0.f), all(0.f), all(0.f), all(0.f)};
        for (size e = 0; e < n; e++) {
            const float *value = values + entries[e] * ld + j;
            Floats weight = all(scores[e]);
            UNROLL for (int i = 0; i < 4; i++)
                if (j + 16 * i < d) sums[i] = mul_add(weight, load(value + 16 * i, d - j - 16 * i), sums[i]);
        }
        UNROLL for (int i = 0; i < 4; i++)
            if (j + 16 * i < d) store(out + j + 16 * i, d - j - 16 * i, sums[i]);
    }
}

static void attend_cached_piece(const void *task, size b) {
    const Attention *a = task;
    size k = a->hypotheses, d = a->width, of_keys = a->groups * d, ld = 2 * of_keys, lde = a->length;
    size start = a->starts[b], n = a->starts[b + 1] - start, share = a->heads / a->groups;
    size ldq = ld + a->heads * d, ldo = a->heads * d;
    float *scores = scratch(SCORES_SLOT, (lde + 16) * 4);
    const float *rows = a->q + start * ldq;
    for (size i = 0; i < n; i++)
        memcpy(a->keys + a->new_entries[start + i] * ld, rows + i * ldq + a->heads * d, (size_t)ld * 4);
    for (size g = 0; g < a->groups; g++) {
        const float *keys = a->keys + g * d, *values = keys + of_keys;
        for (size i = 0; i < n; i++) {
            int is_last = g + 1 == a->groups;  /* the next group is the first of the next sentence */
            size past = b * k + i, next = is_last && b + 1 < a->sentences ? past + k : past;
            const float *coming = is_last ? a->keys : keys + d;
            const int32_t *entries = a->entries + past * lde;
            for (size e = 0; e < a->counts[next]; e++) {
                prefetch(coming + a->entries[next * lde + e] * ld, d);
                prefetch(coming + a->entries[next * lde + e] * ld + of_keys, d);
            }
            for (size h = g * share; h < (g + 1) * share; h++) {
                const float *q = rows + i * ldq + h * d;
                float *out = a->out + (start + i) * ldo + h * d;
                switch (d) {  /* common widths, known to the compiler */
                case 32: attend_past(32, q, keys, values, ld, entries, a->counts[past], scores, out); break;
                case 48: attend_past(48, q, keys, values, ld, entries, a->counts[past], scores, out); break;
                case 64: attend_past(64, q, keys, values, ld, entries, a->counts[past], scores, out); break;
                default: attend_past(d, q, keys, values, ld, entries, a->counts[past], scores, out);
                }
            }
        }
    }
}

/* One step of self-attention: writes the new keys and values to their entries of the cache, then each row
   attends to the entries of its past (see `advance_past`) */
API void attend_cached(const Attention *a, int threads) { run_pieces(a->sentences, threads, attend_cached_piece, a); }

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/* ---- Support ---------------------------------------------------------------------------------------- */

/* Return 0 if this processor cannot run the kernels, 1 if it can, 2 if it also uses AMX tiles.  They
   are requested from Linux if `amx` is true.  Once granted, signal stacks under 11,952 bytes fail with
   ENOMEM in the whole process, because Linux saves the tiles there.  On Linux, build.py has checked the
   processor; a Mac with an Intel processor may lack AVX2. */
API int enable(int amx) {
#if defined SET_AVX512 && defined __linux__
    const long request_permission = 0x1023, tile_data = 18;  /* arch_prctl(2) */
    has_amx = amx && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#ifdef EMULATE_TILES
    has_amx = 1;
#endif
#elif defined SET_AVX2 && defined __APPLE__
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return 1 + has_amx;
}
