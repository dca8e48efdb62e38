/* Kernels of a Transformer on a processor with AVX-512 and VNNI, and with AMX if there is that,
   called through ctypes.

   The layers that call them are Python; a restatement of each kernel in torch is in
   tests/unit/models/test_kernels.py.  Matrices are row-major float32 with a leading dimension (ld...), the
   number of floats from one row to the next; a row is a token, or a hypothesis at its newest step.

   Each row's result depends on that row alone, to the last bit: whatever the other rows of the
   call, their number, and the number of threads.

   Letters: R rows, D inputs, N outputs, B sentences, K hypotheses of each, H heads of queries, G
   heads of keys and values, d width of a head, S source tokens. */

#include <cpuid.h>
#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PANEL 32        /* outputs whose weights lie side by side */
#define TILE 12         /* rows of a product that stay in registers: 24 sums of 16 numbers */
#define BLOCK 192       /* rows that stay in the second-level cache between the steps of a kernel */
#define COLUMNS 512     /* logits of a row that stay in cache until they are summed up, */
#define FEW 24          /* of so many rows at a time */
#define HEIGHT 16       /* rows of a tile of AMX */
#define STEP 64         /* bytes of a row that a tile of AMX takes */
#define QUERIES 6       /* queries that look at a key while it is in a register */
#define API __attribute__((visibility("default")))

typedef int64_t size;

/* Weights (N, D) in panels of 32 outputs.  Bytes: [N/32][D/4][32][4], so that four inputs of an
   output lie side by side, as VNNI and AMX multiply them; D is rounded up to 64 there.  Floats:
   [N/32][D][32].  Missing outputs and inputs are 0. */
typedef struct {
    size outputs, inputs;
    const int8_t *bytes;   /* or NULL */
    const float *floats;   /* or NULL */
    const float *scale;    /* of the bytes of each output */
    const int32_t *total;  /* sum of the bytes of each output */
    const float *bias;
} Weights;

typedef struct {
    const float *weight, *bias;  /* bias NULL: the root mean square alone is normed */
    float epsilon;
} Norm;

enum { NONE, RELU, SILU, GELU_SIGMOID, GELU_TANH };

/* ---- Threads --------------------------------------------------------------------------------- */

/* A task is done in pieces, by the calling thread and by helpers that wait for the next task: first
   spinning, as it mostly comes within microseconds, then asleep.  Nobody waits for a helper that
   wakes up late.  The ticket holds the number of the task, its pieces and the next piece, in one
   word, so that a late helper cannot take a piece of one task for a piece of another. */

enum { MAX_HELPERS = 63, SPINS = 4000, PIECE_BITS = 20 };
typedef void Piece(const void *task, size piece);

static struct {
    pthread_mutex_t busy, lock;
    pthread_cond_t wake;
    pid_t process;  /* whose helpers they are: a fork has none */
    int helpers;
    Piece *piece;
    const void *task;
    atomic_ulong ticket;
    atomic_long done;
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER};

static unsigned long number_of(unsigned long ticket) { return ticket >> 2 * PIECE_BITS; }

static void work(void) {
    const unsigned long mask = (1ul << PIECE_BITS) - 1;
    for (;;) {
        unsigned long ticket = atomic_fetch_add(&pool.ticket, 1);
        if ((ticket & mask) >= (ticket >> PIECE_BITS & mask)) return;
        pool.piece(pool.task, (size)(ticket & mask));
        atomic_fetch_add(&pool.done, 1);
    }
}

static void *help(void *number) {
    unsigned long seen = (unsigned long)(uintptr_t)number;
    for (;;) {
        for (int i = 0; i < SPINS && number_of(atomic_load(&pool.ticket)) == seen; i++)
            __builtin_ia32_pause();
        pthread_mutex_lock(&pool.lock);
        while (number_of(atomic_load(&pool.ticket)) == seen)
            pthread_cond_wait(&pool.wake, &pool.lock);
        pthread_mutex_unlock(&pool.lock);
        seen = number_of(atomic_load(&pool.ticket));
        work();
    }
    return NULL;
}

static void hire(int wanted) {
    if (pool.process != getpid()) {
        pool.process = getpid();
        pool.helpers = 0;
        pthread_mutex_init(&pool.lock, NULL);
        pthread_cond_init(&pool.wake, NULL);
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (pool.helpers < wanted && pool.helpers < MAX_HELPERS) {
        pthread_t thread;
        void *seen = (void *)(uintptr_t)number_of(atomic_load(&pool.ticket));
        if (pthread_create(&thread, &attributes, help, seen)) break;  /* then with fewer */
        pool.helpers++;
    }
    pthread_attr_destroy(&attributes);
}

static void in_pieces(size pieces, int threads, Piece *piece, const void *task) {
    int shared = threads > 1 && pieces > 1 && pieces < 1l << PIECE_BITS;
    if (!shared || pthread_mutex_trylock(&pool.busy)) {  /* or the helpers work for another thread */
        for (size i = 0; i < pieces; i++) piece(task, i);
        return;
    }
    hire(threads - 1);
    pool.piece = piece;
    pool.task = task;
    atomic_store(&pool.done, 0);
    unsigned long number = number_of(atomic_load(&pool.ticket)) + 1;
    pthread_mutex_lock(&pool.lock);
    atomic_store(&pool.ticket, number << 2 * PIECE_BITS | (unsigned long)pieces << PIECE_BITS);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    work();
    while (atomic_load(&pool.done) < pieces) __builtin_ia32_pause();
    pthread_mutex_unlock(&pool.busy);
}

/* Memory of the calling thread, which grows and is kept: one of SLOTS areas, 64 bytes aligned. */
enum { ROWS_SLOT, STEP_SLOT, HIDDEN_SLOT, KEYS_SLOT, SCORES_SLOT, SLOTS };

static void *scratch(int slot, size bytes) {
    static _Thread_local struct { void *memory; size bytes; } areas[SLOTS];
    if (areas[slot].bytes < bytes) {
        free(areas[slot].memory);
        areas[slot].bytes = (bytes + bytes / 4 + 4095) / 4096 * 4096;
        areas[slot].memory = aligned_alloc(64, (size_t)areas[slot].bytes);
        if (!areas[slot].memory) abort();  /* as Python does where nothing can be raised */
    }
    return areas[slot].memory;
}

static size smaller(size a, size b) { return a < b ? a : b; }
static size rounded_up(size n, size multiple) { return (n + multiple - 1) / multiple * multiple; }

/* ---- Numbers, 16 at a time ------------------------------------------------------------------- */

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")
#endif
#define INLINE static inline __attribute__((always_inline))

typedef __m512 Floats;

INLINE __mmask16 first(size n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }
INLINE Floats all(float x) { return _mm512_set1_ps(x); }
/* Of a row of which n floats are left; the others are 0 */
INLINE Floats load(const float *x, size n) { return _mm512_maskz_loadu_ps(first(n), x); }
INLINE void store(float *x, size n, Floats v) { _mm512_mask_storeu_ps(x, first(n), v); }

/* e to the power of x <= 0, by a polynomial of 2^f for f of -1/2 to 1/2, 2e-8 off at most.  The
   product with log2 e is made in two parts, or its rounding would count x times.  NaN stays NaN, as
   max returns its second operand then. */
INLINE Floats exponential(Floats x) {
    const Floats log2_e = all(1.44269502f), rest = all(1.9259630e-8f);
    x = _mm512_max_ps(all(-87.f), x);
    Floats whole = _mm512_roundscale_ps(_mm512_mul_ps(x, log2_e), 0);
    Floats f = _mm512_fmadd_ps(x, rest, _mm512_fmsub_ps(x, log2_e, whole));
    Floats sum = all(1.5353362e-4f);
    sum = _mm512_fmadd_ps(sum, f, all(1.3398875e-3f));
    sum = _mm512_fmadd_ps(sum, f, all(9.6184369e-3f));
    sum = _mm512_fmadd_ps(sum, f, all(5.5503324e-2f));
    sum = _mm512_fmadd_ps(sum, f, all(2.4022648e-1f));
    sum = _mm512_fmadd_ps(sum, f, all(6.9314718e-1f));
    sum = _mm512_fmadd_ps(sum, f, all(1.f));
    return _mm512_scalef_ps(sum, whole);
}

/* x * sigmoid(y): with z = e^-|y|, the sigmoid is 1 / (1 + z), or z / (1 + z) if y < 0 */
INLINE Floats gated(Floats x, Floats y) {
    Floats z = exponential(_mm512_or_ps(y, all(-0.f)));
    Floats over = _mm512_mask_mov_ps(all(1.f), _mm512_cmp_ps_mask(y, all(0.f), _CMP_LT_OQ), z);
    return _mm512_div_ps(_mm512_mul_ps(x, over), _mm512_add_ps(all(1.f), z));
}

/* n rows of `width` numbers, in place */
static void activate(float *x, size ld, size n, size width, int activation) {
    for (size r = 0; r < n; r++)
        for (size i = 0; i < width; i += 16) {
            Floats v = load(x + r * ld + i, width - i), y = v;
            if (activation == GELU_SIGMOID) y = _mm512_mul_ps(v, all(1.702f));
            if (activation == GELU_TANH) {  /* 1 + tanh(z) = 2 sigmoid(2 z) */
                Floats cube = _mm512_mul_ps(_mm512_mul_ps(v, v), v);
                y = _mm512_fmadd_ps(cube, all(0.044715f), v);
                y = _mm512_mul_ps(y, all(1.5957691216f));  /* 2 sqrt(2 / pi) */
            }
            store(x + r * ld + i, width - i, gated(v, y));
        }
}

/* ---- Norm and products ----------------------------------------------------------------------- */

static void norm_row(const float *x, float *out, size n, const Norm *norm) {
    Floats sum = all(0.f), squares = all(0.f), mean = all(0.f);
    if (norm->bias) {
        for (size i = 0; i < n; i += 16) sum = _mm512_add_ps(sum, load(x + i, n - i));
        mean = all(_mm512_reduce_add_ps(sum) / (float)n);
    }
    for (size i = 0; i < n; i += 16) {
        Floats centred = _mm512_maskz_sub_ps(first(n - i), load(x + i, n - i), mean);
        squares = _mm512_fmadd_ps(centred, centred, squares);
    }
    Floats scale = all(1 / sqrtf(_mm512_reduce_add_ps(squares) / (float)n + norm->epsilon));
    for (size i = 0; i < n; i += 16) {
        Floats v = _mm512_mul_ps(_mm512_sub_ps(load(x + i, n - i), mean), scale);
        Floats bias = norm->bias ? load(norm->bias + i, n - i) : all(0.f);
        store(out + i, n - i, _mm512_fmadd_ps(v, load(norm->weight + i, n - i), bias));
    }
}

/* Rows as a product takes them: bytes around `zero` with a step each, or floats. */
typedef struct {
    const void *rows;
    size ld;  /* bytes or floats */
    const float *step;
    int zero;
} Inputs;

/* One row as bytes: a number is (byte - zero) * step.  Returns the step; NaN if a number is not
   finite, which makes all outputs of the row NaN. */
static float quantise(const float *x, size n, int positive, uint8_t *out, size padded) {
    __m512i top = _mm512_setzero_si512();  /* numbers without their signs are in the order of their bits */
    for (size i = 0; i < n; i += 16)
        top = _mm512_max_epi32(top, _mm512_castps_si512(_mm512_abs_ps(load(x + i, n - i))));
    int bits = _mm512_reduce_max_epi32(top);
    float largest, range = positive ? 255.f : 127.f;
    memcpy(&largest, &bits, 4);
    Floats factor = all(largest > 1e-30f ? range / largest : 0.f);
    __m512i zero = _mm512_set1_epi32(positive ? 0 : 128);
    for (size i = 0; i < padded; i += 16) {
        __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(load(x + i, n > i ? n - i : 0), factor));
        __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, zero));
        _mm_mask_storeu_epi8(out + i, first(padded - i), bytes);
    }
    return largest / range + largest * 0;
}

/* n rows as the inputs of a layer; `norm` NULL: as they are */
static Inputs prepare(const float *x, size ldx, size n, const Weights *w, const Norm *norm, int positive) {
    size d = w->inputs;
    if (!w->bytes && !norm) return (Inputs){x, ldx, NULL, 0};
    if (!w->bytes) {
        float *rows = scratch(ROWS_SLOT, n * d * 4);
        for (size r = 0; r < n; r++) norm_row(x + r * ldx, rows + r * d, d, norm);
        return (Inputs){rows, d, NULL, 0};
    }
    size padded = rounded_up(d, 4), ld = rounded_up(padded, STEP);
    if (ld % 256 == 0) ld += 64;  /* or rows would share the sets of the first-level cache */
    uint8_t *rows = scratch(ROWS_SLOT, rounded_up(n, 2 * HEIGHT) * ld);  /* tiles read whole rows */
    float *step = scratch(STEP_SLOT, (n + d) * 4), *normed = step + n;
    for (size r = 0; r < n; r++) {
        const float *row = x + r * ldx;
        if (norm) norm_row(row, normed, d, norm), row = normed;
        step[r] = quantise(row, d, positive, rows + r * ld, padded);
    }
    return (Inputs){rows, ld, step, positive ? 0 : 128};
}

/* Where a product goes: out = activation(sum), or residual + sum */
typedef struct {
    int activation;
    const float *residual;  /* as `out`; may be the same */
    float *out;
    size ld;
} Outputs;

/* The least number that a tile stores; the activations but ReLU come after it */
INLINE Floats floor_of(const Outputs *to) { return all(to->activation == RELU ? 0.f : -INFINITY); }

INLINE void finish(Floats v, Floats least, size at, size left, const Outputs *to) {
    if (to->residual) v = _mm512_add_ps(v, load(to->residual + at, left));
    store(to->out + at, left, _mm512_max_ps(least, v));  /* NaN stays */
}

/* What turns sums of bytes of 16 outputs into numbers */
typedef struct {
    Floats scale, bias;
    __m512i excess;  /* of inputs that are counted from `zero` */
} Columns;

INLINE Columns columns_at(const Weights *w, size at, int zero) {
    __m512i excess = _mm512_mullo_epi32(_mm512_load_si512(w->total + at), _mm512_set1_epi32(zero));
    return (Columns){_mm512_load_ps(w->scale + at), _mm512_load_ps(w->bias + at), excess};
}

INLINE Floats scaled(__m512i sums, float step, const Columns *columns) {
    Floats v = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, columns->excess));
    return _mm512_fmadd_ps(_mm512_mul_ps(v, columns->scale), all(step), columns->bias);
}

/* n rows from row r on, times the panel of outputs from o on */
INLINE void tile_of_bytes(const int n, const Inputs *in, size r, const Weights *w, size o, const Outputs *to) {
    size groups = rounded_up(w->inputs, 4) / 4;
    const uint8_t *x = (const uint8_t *)in->rows + r * in->ld;
    const int8_t *panel = w->bytes + o * rounded_up(w->inputs, STEP);
    __m512i sums[TILE][2];
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) sums[i][0] = sums[i][1] = _mm512_setzero_si512();
    for (size k = 0; k < groups; k++) {
        __m512i low = _mm512_load_si512(panel + k * 128), high = _mm512_load_si512(panel + k * 128 + 64);
#pragma GCC unroll 16
        for (int i = 0; i < n; i++) {
            int32_t four;
            memcpy(&four, x + i * in->ld + 4 * k, 4);
            __m512i inputs = _mm512_set1_epi32(four);
            sums[i][0] = _mm512_dpbusd_epi32(sums[i][0], inputs, low);
            sums[i][1] = _mm512_dpbusd_epi32(sums[i][1], inputs, high);
        }
    }
    Floats least = floor_of(to);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        size at = o + 16 * h, left = w->outputs - at;
        if (left <= 0) break;
        Columns columns = columns_at(w, at, in->zero);
#pragma GCC unroll 16
        for (int i = 0; i < n; i++)
            finish(scaled(sums[i][h], in->step[r + i], &columns), least, (r + i) * to->ld + at, left, to);
    }
}

INLINE void tile_of_floats(const int n, const Inputs *in, size r, const Weights *w, size o, const Outputs *to) {
    const float *x = (const float *)in->rows + r * in->ld, *panel = w->floats + o * w->inputs;
    Floats sums[TILE][2];
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) sums[i][0] = sums[i][1] = all(0.f);
    for (size k = 0; k < w->inputs; k++) {
        Floats low = _mm512_load_ps(panel + k * PANEL), high = _mm512_load_ps(panel + k * PANEL + 16);
#pragma GCC unroll 16
        for (int i = 0; i < n; i++) {
            Floats input = all(x[i * in->ld + k]);
            sums[i][0] = _mm512_fmadd_ps(input, low, sums[i][0]);
            sums[i][1] = _mm512_fmadd_ps(input, high, sums[i][1]);
        }
    }
    Floats least = floor_of(to);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        size at = o + 16 * h, left = w->outputs - at;
        if (left <= 0) break;
        Floats bias = _mm512_load_ps(w->bias + at);
#pragma GCC unroll 16
        for (int i = 0; i < n; i++)
            finish(_mm512_add_ps(sums[i][h], bias), least, (r + i) * to->ld + at, left, to);
    }
}

/* A function for each number of rows, which the compiler then knows */
#define ROWS(n)                                                                                    \
    static void bytes_##n(const Inputs *in, size r, const Weights *w, size o, const Outputs *to) { \
        tile_of_bytes(n, in, r, w, o, to);                                                         \
    }                                                                                              \
    static void floats_##n(const Inputs *in, size r, const Weights *w, size o, const Outputs *to) {\
        tile_of_floats(n, in, r, w, o, to);                                                        \
    }
ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12)
#undef ROWS

typedef void TileFunction(const Inputs *, size, const Weights *, size, const Outputs *);
static TileFunction *const of_bytes[] = {bytes_1, bytes_2, bytes_3, bytes_4, bytes_5, bytes_6,
                                         bytes_7, bytes_8, bytes_9, bytes_10, bytes_11, bytes_12};
static TileFunction *const of_floats[] = {floats_1, floats_2, floats_3, floats_4, floats_5, floats_6,
                                          floats_7, floats_8, floats_9, floats_10, floats_11, floats_12};

/* ---- Products of bytes by AMX, in tiles of 16 rows ------------------------------------------- */

#ifdef EMULATE_TILES  /* a test of what follows, on any processor */
typedef union { uint8_t u[HEIGHT][STEP]; int8_t s[HEIGHT][STEP]; int32_t sum[HEIGHT][16]; } Tile;
static _Thread_local Tile tiles_[8];
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
#define _tile_loadconfig(config) ((void)(config))
#define _tile_release() ((void)0)
#define _tile_zero(t) memset(&tiles_[t], 0, sizeof(Tile))
#define _tile_loadd(t, from, ld)                                                                   \
    for (size i_ = 0; i_ < HEIGHT; i_++) memcpy(tiles_[t].u[i_], (const char *)(from) + i_ * (ld), STEP)
#define _tile_stored(t, to, ld)                                                                    \
    for (size i_ = 0; i_ < HEIGHT; i_++) memcpy((char *)(to) + i_ * (ld), tiles_[t].u[i_], STEP)
#define _tile_dpbusd(t, a, b)                                                                      \
    for (size i_ = 0; i_ < HEIGHT; i_++)                                                           \
        for (size j_ = 0; j_ < 16; j_++)                                                           \
            for (size k_ = 0; k_ < STEP; k_++)                                                     \
                tiles_[t].sum[i_][j_] += tiles_[a].u[i_][k_] * tiles_[b].s[k_ / 4][4 * j_ + k_ % 4]
#endif

static int has_tiles;  /* set by `supported` */

/* 32 rows from row r on, of which n count, times a panel: tiles 0 to 3 are the sums, 4 and 5 the
   inputs, 6 and 7 the weights */
static void rows_by_tiles(const Inputs *in, size r, size n, const Weights *w, size o, const Outputs *to) {
    const uint8_t *x = (const uint8_t *)in->rows + r * in->ld, *below = x + HEIGHT * in->ld;
    size depth = rounded_up(w->inputs, STEP);
    const int8_t *panel = w->bytes + o * depth;
    _Alignas(64) int32_t sums[2 * HEIGHT][PANEL];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size k = 0; k < depth; k += STEP) {
        _tile_loadd(4, x + k, in->ld);
        _tile_loadd(5, below + k, in->ld);
        _tile_loadd(6, panel + k * PANEL, 4 * PANEL);
        _tile_loadd(7, panel + k * PANEL + 64, 4 * PANEL);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + 16, sizeof sums[0]);
    _tile_stored(2, sums[HEIGHT], sizeof sums[0]);
    _tile_stored(3, sums[HEIGHT] + 16, sizeof sums[0]);
    Floats least = floor_of(to);
    for (int h = 0; h < 2; h++) {
        size at = o + 16 * h, left = w->outputs - at;
        if (left <= 0) break;
        Columns columns = columns_at(w, at, in->zero);
        for (size i = 0; i < n; i++) {
            __m512i own = _mm512_load_si512(sums[i] + 16 * h);
            finish(scaled(own, in->step[r + i], &columns), least, (r + i) * to->ld + at, left, to);
        }
    }
}

/* The shape of all tiles: 16 rows of 64 bytes */
static void shape_tiles(void) {
    struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.bytes[i] = STEP, config.rows[i] = HEIGHT;
    _tile_loadconfig(&config);
}

/* n rows times the outputs from `begin` to `end`, a panel after the other: it stays in the
   first-level cache while all rows pass */
static void multiply(const Inputs *in, size n, const Weights *w, size begin, size end, const Outputs *to) {
    TileFunction *const *tiles = w->bytes ? of_bytes : of_floats;
    int by_tiles = w->bytes && has_tiles && n >= HEIGHT / 2;  /* few rows would leave them empty */
    if (by_tiles) shape_tiles();
    for (size o = begin; o < end; o += PANEL) {
        for (size r = 0; by_tiles && r < n; r += 2 * HEIGHT)
            rows_by_tiles(in, r, smaller(2 * HEIGHT, n - r), w, o, to);
        for (size r = 0; !by_tiles && r < n; r += TILE)
            tiles[smaller(TILE, n - r) - 1](in, r, w, o, to);
        if (to->activation > RELU)
            activate(to->out + o, to->ld, n, smaller(PANEL, w->outputs - o), to->activation);
    }
    if (by_tiles) _tile_release();
}

/* ---- Linear layers --------------------------------------------------------------------------- */

/* Bytes that `pack` fills, for N outputs and D inputs */
API size packed_size(size outputs, size inputs, int in_bytes) {
    return rounded_up(outputs, PANEL) * (in_bytes ? rounded_up(inputs, STEP) : inputs * 4);
}

/* Weights (N, D) to the order of `Weights`: floats, or bytes if `scale` and `total` (N, rounded up
   to 32) are given.  All memory is zeros before. */
API void pack(const float *weight, size outputs, size inputs, void *packed, float *scale, int32_t *total) {
    size groups = rounded_up(inputs, STEP) / 4;
    for (size o = 0; o < outputs; o++) {
        const float *row = weight + o * inputs;
        if (!scale) {
            float *to = (float *)packed + o / PANEL * inputs * PANEL + o % PANEL;
            for (size k = 0; k < inputs; k++) to[k * PANEL] = row[k];
            continue;
        }
        float largest = 0;
        for (size k = 0; k < inputs; k++) largest = fabsf(row[k]) > largest ? fabsf(row[k]) : largest;
        float odd = 0;
        for (size k = 0; k < inputs; k++) odd += row[k] * 0;
        scale[o] = (largest > 1e-30f ? largest : 1e-30f) / 127 + odd;
        int8_t *to = (int8_t *)packed + o / PANEL * groups * PANEL * 4 + o % PANEL * 4;
        for (size k = 0; odd == 0 && k < inputs; k++) {
            int byte = (int)nearbyintf(row[k] / scale[o]);
            to[k / 4 * PANEL * 4 + k % 4] = (int8_t)byte;
            total[o] += byte;
        }
    }
}

typedef struct {
    const float *x;
    size ldx, rows, block;
    const Weights *up, *down;
    const Norm *norm;
    Outputs to;
} Linear;

static void linear_piece(const void *task, size piece) {
    const Linear *l = task;
    size r = piece * l->block, n = smaller(l->block, l->rows - r);
    Inputs in = prepare(l->x + r * l->ldx, l->ldx, n, l->up, l->norm, 0);
    Outputs to = l->to;
    to.out += r * to.ld;
    if (to.residual) to.residual += r * to.ld;
    multiply(&in, n, l->up, 0, l->up->outputs, &to);
}

/* Rows of a piece: a block, or a share of the rows for each thread */
static size block_of(size rows, size most, int threads) {
    size share = rounded_up((rows + threads - 1) / (threads > 0 ? threads : 1), TILE);
    return share < TILE ? TILE : smaller(share, most);
}

/* out (R, N) = activation([norm](x) W + b), or residual + ..., x (R, D) */
API void linear(const float *x, size ldx, size rows, const Weights *w, const Norm *norm, int activation,
                const float *residual, float *out, size ldo, int threads) {
    Linear task = {x, ldx, rows, block_of(rows, BLOCK, threads), w, NULL, norm,
                   {activation, residual, out, ldo}};
    in_pieces((rows + task.block - 1) / task.block, threads, linear_piece, &task);
}

static void feed_forward_piece(const void *task, size piece) {
    const Linear *l = task;
    size r = piece * l->block, n = smaller(l->block, l->rows - r), ldh = l->up->outputs + 16;
    float *hidden = scratch(HIDDEN_SLOT, n * ldh * 4);
    Outputs between = {l->to.activation, NULL, hidden, ldh}, to = l->to;
    Inputs in = prepare(l->x + r * l->ldx, l->ldx, n, l->up, l->norm, 0);
    multiply(&in, n, l->up, 0, l->up->outputs, &between);
    in = prepare(hidden, ldh, n, l->down, NULL, between.activation == RELU);
    to.activation = NONE;
    to.out += r * to.ld;
    if (to.residual) to.residual += r * to.ld;
    multiply(&in, n, l->down, 0, l->down->outputs, &to);
}

/* out (R, D) = [residual +] activation([norm](x) U + u) W + b; hidden units stay in cache */
API void feed_forward(const float *x, size ldx, size rows, const Weights *up, const Weights *down,
                      const Norm *norm, int activation, const float *residual, float *out, size ldo,
                      int threads) {
    Linear task = {x, ldx, rows, block_of(rows, BLOCK / 2, threads), up, down, norm,
                   {activation, residual, out, ldo}};
    in_pieces((rows + task.block - 1) / task.block, threads, feed_forward_piece, &task);
}

/* ---- Head: logits, and what a search needs of all of them ------------------------------------ */

typedef struct {
    const Inputs *in;
    size rows, block;
    const Weights *w;
    Outputs to;
    float *maxima, *tops;
    double *sums;
} Head;

/* The largest of n numbers, but for NaN */
INLINE float largest_of(const float *x, size n) {
    Floats most = all(-INFINITY);
    for (size i = 0; i < n; i += 16)
        most = _mm512_mask_max_ps(most, first(n - i), most, load(x + i, n - i));
    return _mm512_reduce_max_ps(most);
}

INLINE Floats below(const float *x, Floats top) { return exponential(_mm512_sub_ps(_mm512_loadu_ps(x), top)); }

/* The sum of e^(number - top), in double precision: one large number and many small ones are common.
   NaN if there is one. */
INLINE double sum_below(const float *x, size n, float most) {
    __m512d low = _mm512_setzero_pd(), high = low;
    Floats top = all(most), sum;
    for (size i = 0; i < n;) {
        if (i + 64 <= n) {
            Floats half = _mm512_add_ps(below(x + i, top), below(x + i + 16, top));
            sum = _mm512_add_ps(half, _mm512_add_ps(below(x + i + 32, top), below(x + i + 48, top)));
            i += 64;
        } else {
            sum = exponential(_mm512_sub_ps(load(x + i, n - i), top));
            sum = _mm512_maskz_mov_ps(first(n - i), sum);
            i += 16;
        }
        low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(sum)));
        high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(sum, 1)));
    }
    return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

/* log-sum-exp of sums that stand `apart` floats apart, each below a top of its own */
static float joined(const float *tops, const double *sums, size n, size apart) {
    float top = -INFINITY;
    double sum = 0;
    for (size p = 0; p < n; p++) top = fmaxf(top, tops[p * apart]);
    for (size p = 0; p < n; p++) sum += sums[p * apart] * exp((double)tops[p * apart] - top);
    float found = (float)(top + log(sum));
    return found < -FLT_MAX ? -FLT_MAX : found;  /* NaN stays */
}

/* COLUMNS logits of all rows: the maximum of each block, of all, and the sum of e^(logit - top) */
static void head_piece(const void *task, size piece) {
    const Head *h = task;
    size begin = piece * COLUMNS, n = smaller(COLUMNS, h->w->outputs - begin);
    size n_blocks = (h->w->outputs + h->block - 1) / h->block;
    for (size r0 = 0; r0 < h->rows; r0 += FEW) {
        size rows = smaller(FEW, h->rows - r0);
        Inputs in = *h->in;
        in.rows = h->w->bytes ? (const void *)((const uint8_t *)in.rows + r0 * in.ld)
                              : (const void *)((const float *)in.rows + r0 * in.ld);
        if (in.step) in.step += r0;
        Outputs to = h->to;
        to.out += r0 * to.ld;
        multiply(&in, rows, h->w, begin, begin + n, &to);
        for (size r = 0; r < rows; r++) {
            const float *logits = to.out + r * to.ld + begin;
            float *maxima = h->maxima + (r0 + r) * n_blocks + begin / h->block;
            float top = -INFINITY;
            for (size b = 0; b < n; b += h->block) {
                float found = largest_of(logits + b, smaller(h->block, n - b));
                maxima[b / h->block] = found;
                top = found > top ? found : top;
            }
            top = top < -FLT_MAX ? -FLT_MAX : top;  /* nothing but -inf */
            h->tops[piece * h->rows + r0 + r] = top;
            h->sums[piece * h->rows + r0 + r] = sum_below(logits, n, top);
        }
    }
}

/* logits (R, N) of x (R, D), their log-sum-exp (R), and the maxima (R, blocks) of blocks of so many
   columns, a power of 2 from 1 to COLUMNS.  The sum is in one order whoever computes it. */
API void head(const float *x, size ldx, size rows, const Weights *w, size block, float *logits,
              float *log_sums_to, float *maxima, int threads) {
    size pieces = (w->outputs + COLUMNS - 1) / COLUMNS;
    Inputs in = prepare(x, ldx, rows, w, NULL, 0);
    double *sums = scratch(HIDDEN_SLOT, pieces * rows * 12);
    float *tops = (float *)(sums + pieces * rows);
    Head task = {&in, rows, block, w, {NONE, NULL, logits, w->outputs}, maxima, tops, sums};
    in_pieces(pieces, threads, head_piece, &task);
    for (size r = 0; r < rows; r++) log_sums_to[r] = joined(tops + r, sums + r, pieces, rows);
}

typedef struct {
    const float *x;
    size ld, rows, n;
    float *out;
} LogSums;

static void log_sums_piece(const void *task, size piece) {
    const LogSums *l = task;
    size pieces = (l->n + COLUMNS - 1) / COLUMNS;
    double *sums = scratch(HIDDEN_SLOT, pieces * 12);
    float *tops = (float *)(sums + pieces);
    for (size r = piece * TILE; r < smaller((piece + 1) * TILE, l->rows); r++) {
        for (size p = 0; p < pieces; p++) {
            const float *x = l->x + r * l->ld + p * COLUMNS;
            size n = smaller(COLUMNS, l->n - p * COLUMNS);
            float top = largest_of(x, n);
            tops[p] = top < -FLT_MAX ? -FLT_MAX : top;
            sums[p] = sum_below(x, n, tops[p]);
        }
        l->out[r] = joined(tops, sums, pieces, 1);
    }
}

/* log-sum-exp of the rows of x (R, N), as `head` computes it */
API void log_sums(const float *x, size ld, size rows, size n, float *out, int threads) {
    LogSums task = {x, ld, rows, n, out};
    in_pieces((rows + TILE - 1) / TILE, threads, log_sums_piece, &task);
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* n scores to weights that add up to 1; there is room for a multiple of 16 */
INLINE void softmax(float *scores, size n) {
    Floats top = all(-INFINITY), sum = all(0.f);
    for (size s = 0; s < n; s += 16)
        top = _mm512_mask_max_ps(top, first(n - s), top, load(scores + s, n - s));
    top = all(_mm512_reduce_max_ps(top));
    for (size s = 0; s < n; s += 16) {
        Floats e = exponential(_mm512_sub_ps(load(scores + s, n - s), top));
        e = _mm512_maskz_mov_ps(first(n - s), e);
        sum = _mm512_add_ps(sum, e);
        _mm512_storeu_ps(scores + s, e);
    }
    Floats share = all(1 / _mm512_reduce_add_ps(sum));
    for (size s = 0; s < n; s += 16)
        _mm512_storeu_ps(scores + s, _mm512_mul_ps(share, _mm512_loadu_ps(scores + s)));
}

/* n queries (ldq) of a head to S keys, transposed (d, ldk), and values (S, ldv): out (n, ldo), and
   the weights in `scores` (n, S rounded up to 16) */
INLINE void attend_few(const int n, const float *q, size ldq, const float *keys, size ldk,
                       const float *values, size ldv, size length, size d, float *scores, float *out,
                       size ldo) {
    size lds = rounded_up(length, 16);
    Floats scale = all(1 / sqrtf((float)d));
    for (size s = 0; s < length; s += 16) {
        Floats sums[QUERIES];
        for (int i = 0; i < n; i++) sums[i] = all(0.f);
        for (size j = 0; j < d; j++) {
            Floats key = load(keys + j * ldk + s, length - s);
#pragma GCC unroll 8
            for (int i = 0; i < n; i++) sums[i] = _mm512_fmadd_ps(all(q[i * ldq + j]), key, sums[i]);
        }
        for (int i = 0; i < n; i++) _mm512_storeu_ps(scores + i * lds + s, _mm512_mul_ps(sums[i], scale));
    }
    for (int i = 0; i < n; i++) softmax(scores + i * lds, length);
    for (size j = 0; j < d; j += 16) {
        Floats sums[QUERIES];
        for (int i = 0; i < n; i++) sums[i] = all(0.f);
        for (size s = 0; s < length; s++) {
            Floats value = load(values + s * ldv + j, d - j);
#pragma GCC unroll 8
            for (int i = 0; i < n; i++) sums[i] = _mm512_fmadd_ps(all(scores[i * lds + s]), value, sums[i]);
        }
        for (int i = 0; i < n; i++) store(out + i * ldo + j, d - j, sums[i]);
    }
}

static void attend(size n, const float *q, size ldq, const float *keys, size ldk, const float *values,
                   size ldv, size length, size d, float *scores, float *out, size ldo) {
    size lds = rounded_up(length, 16);
    for (size i = 0; i < n; i += QUERIES) {
        switch (smaller(QUERIES, n - i)) {
#define CASE(m)                                                                                        \
    case m:                                                                                            \
        attend_few(m, q + i * ldq, ldq, keys, ldk, values, ldv, length, d, scores + i * lds,           \
                   out + i * ldo, ldo);                                                                \
        break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#undef CASE
        }
    }
}

/* Ask for n numbers that are read soon: from one head to the next, a processor does not guess where
   the reading goes on */
INLINE void fetch(const float *x, size n) {
    for (size i = 0; i < n; i += 16) _mm_prefetch((const char *)(x + i), _MM_HINT_T0);
}

typedef struct {
    const float *q;  /* queries; of self-attention, keys and values follow in each row */
    size ldq, heads, groups, width;
    const size *starts;
    const float *keys, *values;
    size length, queries;
    const size *lengths;
    float *weights, *out;
    size ldo;
} Attention;

static void attend_self_piece(const void *task, size b) {
    const Attention *a = task;
    size start = a->starts[b], n = a->starts[b + 1] - start, d = a->width, ldk = rounded_up(n, 16);
    float *keys = scratch(KEYS_SLOT, d * ldk * 4), *scores = scratch(SCORES_SLOT, n * ldk * 4);
    const float *rows = a->q + start * a->ldq;
    for (size h = 0; h < a->heads; h++) {
        size of_group = (a->heads + h * a->groups / a->heads) * d;
        for (size s = 0; s < n; s++)
            for (size j = 0; j < d; j++) keys[j * ldk + s] = rows[s * a->ldq + of_group + j];
        attend(n, rows + h * d, a->ldq, keys, ldk, rows + of_group + a->groups * d, a->ldq, n, d,
               scores, a->out + start * a->ldo + h * d, a->ldo);
    }
}

/* Self-attention of sentences that lie one after the other without padding, `starts` (B + 1):
   qkv (R, (H + 2 G) d) to out (R, H d) */
API void attend_self(const float *qkv, size ldq, size sentences, const size *starts, size heads,
                     size groups, size width, float *out, size ldo, int threads) {
    Attention task = {.q = qkv, .ldq = ldq, .heads = heads, .groups = groups, .width = width,
                      .starts = starts, .out = out, .ldo = ldo};
    in_pieces(sentences, threads, attend_self_piece, &task);
}

static void attend_memory_piece(const void *task, size b) {
    const Attention *a = task;
    size n = a->queries, d = a->width, s = a->length, length = a->lengths[b], lds = rounded_up(length, 16);
    float *scores = scratch(SCORES_SLOT, n * lds * 4);
    for (size h = 0; h < a->heads; h++) {
        size group = b * a->groups + h * a->groups / a->heads, next = (group + 1) * d * s;
        fetch(a->keys + next, d * s);
        fetch(a->values + next, d * s);
        attend(n, a->q + b * n * a->ldq + h * d, a->ldq, a->keys + group * d * s, s,
               a->values + group * s * d, d, length, d, scores, a->out + b * n * a->ldo + h * d, a->ldo);
        if (!a->weights) continue;
        for (size i = 0; i < n; i++) {
            float *to = a->weights + ((b * a->heads + h) * n + i) * s;
            memcpy(to, scores + i * lds, (size_t)length * 4);
            memset(to + length, 0, (size_t)(s - length) * 4);
        }
    }
}

/* Attention of the K queries of each sentence (B K, H d) to its memory: keys (B, G, d, S), values
   (B, G, S, d), the first `lengths` (B) of them.  weights (B, H, K, S), 0 on padding, or NULL. */
API void attend_memory(const float *q, size ldq, size sentences, size queries, size heads, size groups,
                       size width, const float *keys, const float *values, size length,
                       const size *lengths, float *weights, float *out, size ldo, int threads) {
    Attention task = {q, ldq, heads, groups, width, NULL, keys, values, length, queries, lengths,
                      weights, out, ldo};
    in_pieces(sentences, threads, attend_memory_piece, &task);
}

/* ---- A hypothesis looks back ----------------------------------------------------------------- */

/* The entries of a row's own past: where mask (R, ldm) is 0 among the first n columns.  Written to
   entries (R, lde), in their order, and their number to counts (R). */
API void find_past(const float *mask, size ldm, size rows, size n, int32_t *entries, size lde, int32_t *counts) {
    for (size r = 0; r < rows; r++) {
        int32_t count = 0;
        for (size e = 0; e < n; e += 16) {
            __mmask16 seen = _mm512_mask_cmp_ps_mask(first(n - e), load(mask + r * ldm + e, n - e), all(0.f), _CMP_EQ_OQ);
            __m512i places = _mm512_add_epi32(_mm512_set1_epi32((int)e), _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
            int found = __builtin_popcount(seen);
            __m512i dense = _mm512_maskz_compress_epi32(seen, places);
            _mm512_mask_storeu_epi32(entries + r * lde + count, first(found), dense);
            count += found;
        }
        counts[r] = count;
    }
}

typedef struct {
    const float *qkv;
    size ldq, rows, queries, heads, groups, width;
    float *keys, *values;
    size capacity, newest;
    const int32_t *entries, *counts;
    size lde;
    float *out;
    size ldo;
} Look;

INLINE Floats product(const size d, const float *q, const float *key) {
    Floats sum = _mm512_mul_ps(load(q, d), load(key, d));
    for (size j = 16; j < d; j += 16)
        sum = _mm512_fmadd_ps(load(q + j, d - j), load(key + j, d - j), sum);
    return sum;
}

/* Sums of four vectors, side by side */
INLINE __m128 sums_of_four(Floats a, Floats b, Floats c, Floats d) {
    Floats ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    Floats cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    Floats both = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(both), _mm512_extractf32x8_ps(both, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* One query to the n entries of its past, keys and values (capacity, d) */
INLINE void look(const size d, const float *q, const float *keys, const float *values,
                 const int32_t *entries, size n, float *scores, float *out) {
    __m128 scale = _mm_set1_ps(1 / sqrtf((float)d));
    for (size e = 0; e < n; e += 4) {
        const float *key[4];
        for (int i = 0; i < 4; i++) key[i] = keys + entries[e + i < n ? e + i : e] * d;
        __m128 four = sums_of_four(product(d, q, key[0]), product(d, q, key[1]), product(d, q, key[2]), product(d, q, key[3]));
        _mm_storeu_ps(scores + e, _mm_mul_ps(four, scale));
    }
    softmax(scores, n);
    for (size j = 0; j < d; j += 64) {  /* four vectors of sums at a time */
        Floats sums[4] = {all(0.f), all(0.f), all(0.f), all(0.f)};
        for (size e = 0; e < n; e++) {
            const float *value = values + entries[e] * d + j;
            Floats weight = all(scores[e]);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                if (j + 16 * i < d) sums[i] = _mm512_fmadd_ps(weight, load(value + 16 * i, d - j - 16 * i), sums[i]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            if (j + 16 * i < d) store(out + j + 16 * i, d - j - 16 * i, sums[i]);
    }
}

static void look_back_piece(const void *task, size b) {
    const Look *l = task;
    size k = l->queries, d = l->width, of_group = l->capacity * d, share = l->heads / l->groups;
    float *scores = scratch(SCORES_SLOT, (l->lde + 16) * 4);
    const float *rows = l->qkv + b * k * l->ldq;
    for (size g = 0; g < l->groups; g++) {
        float *keys = l->keys + (b * l->groups + g) * of_group, *values = l->values + (b * l->groups + g) * of_group;
        for (size i = 0; i < k; i++) {
            const float *key = rows + i * l->ldq + (l->heads + g) * d;
            memcpy(keys + (l->newest + i) * d, key, (size_t)d * 4);
            memcpy(values + (l->newest + i) * d, key + l->groups * d, (size_t)d * 4);
        }
        for (size i = 0; i < k; i++) {
            size r = b * k + i, next = g + 1 < l->groups ? r : smaller(r + k, l->rows - 1);
            const int32_t *entries = l->entries + r * l->lde, *coming = l->entries + next * l->lde;
            for (size e = 0; e < l->counts[next]; e++) {
                fetch(keys + of_group + coming[e] * d, d);
                fetch(values + of_group + coming[e] * d, d);
            }
            for (size h = g * share; h < (g + 1) * share; h++) {
                const float *q = rows + i * l->ldq + h * d;
                float *out = l->out + r * l->ldo + h * d;
                switch (d) {  /* widths that the compiler knows */
                case 32: look(32, q, keys, values, entries, l->counts[r], scores, out); break;
                case 48: look(48, q, keys, values, entries, l->counts[r], scores, out); break;
                case 64: look(64, q, keys, values, entries, l->counts[r], scores, out); break;
                default: look(d, q, keys, values, entries, l->counts[r], scores, out);
                }
            }
        }
    }
}

/* One step of cached self-attention: the keys and values of qkv (B K, (H + 2 G) d) are written to
   the entries `newest` ... `newest` + K - 1 of the cache (B, G, capacity, d), and each row attends to
   the entries of its own past, see `find_past`.  out (B K, H d) */
API void look_back(const float *qkv, size ldq, size sentences, size queries, size heads, size groups,
                   size width, float *keys, float *values, size capacity, size newest,
                   const int32_t *entries, size lde, const int32_t *counts, float *out, size ldo,
                   int threads) {
    Look task = {qkv, ldq, sentences * queries, queries, heads, groups, width, keys, values, capacity, newest,
                 entries, counts, lde, out, ldo};
    in_pieces(sentences, threads, look_back_piece, &task);
}

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/* Whether the processor has AMX for bytes, and Linux lets this process use its tiles */
static int may_use_tiles(void) {
#ifdef EMULATE_TILES
    return 1;
#else
    const unsigned amx_tile = 1u << 24, amx_int8 = 1u << 25;
    const long request_permission = 0x1023, tile_data = 18;  /* of arch_prctl(2) */
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if ((d & (amx_tile | amx_int8)) != (amx_tile | amx_int8)) return 0;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#endif
}

/* Whether this processor and its system run what is above */
API int supported(void) {
    has_tiles = may_use_tiles();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
