/* Sixteen numbers at a time, with the same bits on every instruction set.

   The kernels compute with `Floats` and `Ints`: 16 numbers in one AVX-512, two AVX or four NEON
   registers.  The first part of this file is a table of the operations that differ between sets;
   everything below it is written in terms of them.  Results are equal to the last bit because a
   multiply-add is fused only where `fma` is called (compile with -ffp-contract=off), and because
   every sum of 16 numbers is folded in the same order: 16 to 8 to 4 to 2 to 1.

   -D selects the set: SET_AVX512 (AVX-512 with VNNI, and AMX), SET_AVXVNNI (AVX2 with VNNI),
   SET_AVX2 or SET_NEON (with dot products). */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined SET_NEON
#include <arm_neon.h>
#define TARGET "arch=armv8.2-a+dotprod"
#define WIDTH 4 /* numbers in a register */
#else
#include <immintrin.h>
#if defined SET_AVX512
#define TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8"
#define WIDTH 16
#elif defined SET_AVXVNNI
#define TARGET "avx2,fma,avxvnni"
#define WIDTH 8
#else
#define TARGET "avx2,fma"
#define WIDTH 8
#endif
#endif

#ifdef __clang__
#pragma clang attribute push(__attribute__((target(TARGET))), apply_to = function)
#else
#define PRAGMA_(text) _Pragma(#text)
#define PRAGMA(text) PRAGMA_(text)
#pragma GCC push_options
PRAGMA(GCC target(TARGET))
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define PARTS (16 / WIDTH)
#define DEPTH 4 /* inputs that `dot` multiplies at once */

typedef int64_t size;
typedef float FloatReg __attribute__((vector_size(4 * WIDTH)));
typedef int32_t IntReg __attribute__((vector_size(4 * WIDTH)));
typedef double DoubleReg __attribute__((vector_size(4 * WIDTH)));
typedef float Four __attribute__((vector_size(16)));
typedef struct { FloatReg part[PARTS]; } Floats;
typedef struct { IntReg part[PARTS]; } Ints;

/* In memory: vectors at any address.  (A memcpy into a vector goes through the stack in gcc.) */
typedef float FloatsAt __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t IntsAt __attribute__((vector_size(4 * WIDTH), aligned(1), may_alias));
typedef int32_t IntAt __attribute__((aligned(1), may_alias));

/* A value of type Floats or Ints, from an expression for each part p */
#define EACH(Type, value)                                  \
    ({                                                     \
        Type each_;                                        \
        UNROLL for (int p = 0; p < PARTS; p++) each_.part[p] = (value); \
        each_;                                             \
    })

/* ---- Operations that differ between instruction sets -------------------------------------------

   reg_fma     a * b + c, rounded once
   reg_max     a > b ? a : b; that is b if one of them is NaN
   reg_max_int the larger integers
   pairs_low   a[0] b[0] a[1] b[1], and pairs_high a[2] b[2] a[3] b[3]
   quarter     the sums of numbers 0, 4, 8, 12; 1, 5, 9, 13; and so on
   load        n floats, 0 behind them; store: n floats
   load_doubles  WIDTH / 2 floats in double precision
   Input       an input of an integer product, less INPUT_ZERO
   reg_dot     sum + inputs * weights, DEPTH products each
   narrow      store the low 8 bits of 16 integers as inputs; return what sums of their products lack */

/* All ones in the first n, 0 in the others */
INLINE Ints mask_of(size n) {
    static const int32_t ones[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    return EACH(Ints, ((const IntsAt *)(ones + 16 - (n < 0 ? 0 : n < 16 ? n : 16)))[p]);
}

#if defined SET_NEON
typedef int8_t Input;
enum { INPUT_ZERO = 128 };
INLINE FloatReg reg_fma(FloatReg a, FloatReg b, FloatReg c) { return vfmaq_f32(c, a, b); }
INLINE FloatReg reg_max(FloatReg a, FloatReg b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
INLINE IntReg reg_max_int(IntReg a, IntReg b) { return vmaxq_s32(a, b); }
INLINE Four pairs_low(Four a, Four b) { return vzip1q_f32(a, b); }
INLINE Four pairs_high(Four a, Four b) { return vzip2q_f32(a, b); }
INLINE Four quarter(Floats v) { return (v.part[0] + v.part[2]) + (v.part[1] + v.part[3]); }
INLINE DoubleReg load_doubles(const float *x) { return vcvt_f64_f32(vld1_f32(x)); }
INLINE Floats load(const float *x, size n) {
    float copy[16] = {0};
    if (n < 16) {
        for (size i = 0; i < n; i++) copy[i] = x[i];
        x = copy;
    }
    return EACH(Floats, ((const FloatsAt *)x)[p]);
}
INLINE void store(float *x, size n, Floats v) {
    float copy[16];
    float *to = n < 16 ? copy : x;
    UNROLL for (int p = 0; p < PARTS; p++) ((FloatsAt *)to)[p] = v.part[p];
    for (size i = 0; n < 16 && i < n; i++) x[i] = copy[i];
}
INLINE IntReg reg_dot(IntReg sum, const Input *x, IntReg weights) {
    return vdotq_s32(sum, vreinterpretq_s8_s32(weights), vreinterpretq_s8_s32(vdupq_n_s32(*(const IntAt *)x)));
}
INLINE int32_t narrow(Ints v, Input *to) {
    int16x8_t low = vcombine_s16(vmovn_s32(v.part[0]), vmovn_s32(v.part[1]));
    int16x8_t high = vcombine_s16(vmovn_s32(v.part[2]), vmovn_s32(v.part[3]));
    vst1q_s8(to, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    return 0;
}
INLINE void pause_thread(void) { __asm__ volatile("yield"); }

#else
INLINE Four pairs_low(Four a, Four b) { return _mm_unpacklo_ps(a, b); }
INLINE Four pairs_high(Four a, Four b) { return _mm_unpackhi_ps(a, b); }
INLINE Four quarter_of_eight(__m256 v) {
    return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}
INLINE void pause_thread(void) { __builtin_ia32_pause(); }

#if defined SET_AVX512
typedef uint8_t Input;
enum { INPUT_ZERO = 0 };
INLINE FloatReg reg_fma(FloatReg a, FloatReg b, FloatReg c) { return _mm512_fmadd_ps(a, b, c); }
INLINE FloatReg reg_max(FloatReg a, FloatReg b) { return _mm512_max_ps(a, b); }
INLINE IntReg reg_max_int(IntReg a, IntReg b) { return (IntReg)_mm512_max_epi32((__m512i)a, (__m512i)b); }
INLINE Four quarter(Floats v) {
    __m512 all = v.part[0];
    return quarter_of_eight(_mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1)));
}
INLINE DoubleReg load_doubles(const float *x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }
INLINE __mmask16 bits_of(size n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }
INLINE Floats load(const float *x, size n) { return (Floats){{_mm512_maskz_loadu_ps(bits_of(n), x)}}; }
INLINE void store(float *x, size n, Floats v) { _mm512_mask_storeu_ps(x, bits_of(n), v.part[0]); }
INLINE IntReg reg_dot(IntReg sum, const Input *x, IntReg weights) {
    return (IntReg)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(*(const IntAt *)x), (__m512i)weights);
}
INLINE int32_t narrow(Ints v, Input *to) { *(__m128i_u *)to = _mm512_cvtepi32_epi8((__m512i)v.part[0]); return 0; }

#else

INLINE FloatReg reg_fma(FloatReg a, FloatReg b, FloatReg c) { return _mm256_fmadd_ps(a, b, c); }
INLINE FloatReg reg_max(FloatReg a, FloatReg b) { return _mm256_max_ps(a, b); }
INLINE IntReg reg_max_int(IntReg a, IntReg b) { return (IntReg)_mm256_max_epi32((__m256i)a, (__m256i)b); }
INLINE Four quarter(Floats v) { return quarter_of_eight(v.part[0] + v.part[1]); }
INLINE DoubleReg load_doubles(const float *x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
INLINE Floats load(const float *x, size n) {
    if (n >= 16) return EACH(Floats, ((const FloatsAt *)x)[p]);
    Ints mask = mask_of(n);
    return EACH(Floats, _mm256_maskload_ps(x + 8 * p, (__m256i)mask.part[p]));
}
INLINE void store(float *x, size n, Floats v) {
    Ints mask = mask_of(n);
    UNROLL for (int p = 0; p < PARTS; p++) {
        if (n >= 16) ((FloatsAt *)x)[p] = v.part[p];
        else _mm256_maskstore_ps(x + 8 * p, (__m256i)mask.part[p], v.part[p]);
    }
}
/* The low 8 bits of 16 integers */
INLINE __m128i bytes_of(Ints v) {
    __m256i words = _mm256_packus_epi32((__m256i)(v.part[0] & 255), (__m256i)(v.part[1] & 255));
    words = _mm256_permute4x64_epi64(words, 0xd8);  /* packus works within halves */
    return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

#if defined SET_AVXVNNI
typedef uint8_t Input;
enum { INPUT_ZERO = 0 };
INLINE IntReg reg_dot(IntReg sum, const Input *x, IntReg weights) {
    return (IntReg)_mm256_dpbusd_avx_epi32((__m256i)sum, _mm256_set1_epi32(*(const IntAt *)x), (__m256i)weights);
}
INLINE int32_t narrow(Ints v, Input *to) { *(__m128i_u *)to = bytes_of(v); return 0; }
#else
/* vpmaddubsw multiplies bytes without and with sign, and adds two products in 16 bits, where it saturates:
   for inputs up to 255, but not for magnitudes up to 128.  So 4 inputs are stored as 4 magnitudes, then 4
   masks: -1 if the input is negative, else 0.  weight ^ -1 is -weight - 1, so the sum of a row lacks the
   magnitudes of its negative inputs, whatever the weights. */
typedef int16_t Input;
enum { INPUT_ZERO = 128 };
INLINE IntReg reg_dot(IntReg sum, const Input *x, IntReg weights) {
    __m256i magnitudes = _mm256_set1_epi32(*(const IntAt *)x), masks = _mm256_set1_epi32(*(const IntAt *)(x + 2));
    __m256i products = _mm256_maddubs_epi16(magnitudes, (__m256i)weights ^ masks);
    return sum + (IntReg)_mm256_madd_epi16(products, _mm256_set1_epi16(1));
}
INLINE int32_t narrow(Ints v, Input *to) {
    __m128i x = bytes_of(v), none = _mm_setzero_si128(), magnitudes = _mm_abs_epi8(x), masks = _mm_cmpgt_epi8(none, x);
    _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi32(magnitudes, masks));
    _mm_storeu_si128((__m128i *)to + 1, _mm_unpackhi_epi32(magnitudes, masks));
    __m128i sums = _mm_sad_epu8(magnitudes & masks, none);
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4);
}
#endif
#endif
#endif

/* ---- The rest, in terms of these ---------------------------------------------------------------- */

INLINE Floats all(float x) { return EACH(Floats, x - (FloatReg){0}); }
INLINE Ints all_ints(int32_t x) { return EACH(Ints, x - (IntReg){0}); }
INLINE Floats add(Floats a, Floats b) { return EACH(Floats, a.part[p] + b.part[p]); }
INLINE Floats sub(Floats a, Floats b) { return EACH(Floats, a.part[p] - b.part[p]); }
INLINE Floats mul(Floats a, Floats b) { return EACH(Floats, a.part[p] * b.part[p]); }
INLINE Floats mul_add(Floats a, Floats b, Floats c) { return EACH(Floats, reg_fma(a.part[p], b.part[p], c.part[p])); }
INLINE Floats max(Floats a, Floats b) { return EACH(Floats, reg_max(a.part[p], b.part[p])); }
INLINE Ints mul_int(Ints a, int32_t b) { return EACH(Ints, a.part[p] * b); }
INLINE Floats to_floats(Ints a) { return EACH(Floats, __builtin_convertvector(a.part[p], FloatReg)); }
INLINE Ints bits(Floats a) { return EACH(Ints, (IntReg)a.part[p]); }
INLINE Floats load_all(const float *x) { return EACH(Floats, ((const FloatsAt *)x)[p]); }
INLINE Ints load_ints(const void *x) { return EACH(Ints, ((const IntsAt *)x)[p]); }
INLINE void store_all(float *x, Floats v) { store(x, 16, v); }
INLINE Ints dot(Ints sums, const Input *x, Ints w) { return EACH(Ints, reg_dot(sums.part[p], x, w.part[p])); }

/* The first n numbers, 0 behind them */
INLINE Floats keep(Floats v, size n) {
    if (n >= 16) return v;
    Ints mask = mask_of(n);
    return EACH(Floats, (FloatReg)((IntReg)v.part[p] & mask.part[p]));
}

INLINE float sum_of(Floats v) {
    Four four = quarter(v);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* The sums of four vectors */
INLINE Four sums_of_four(Floats a, Floats b, Floats c, Floats d) {
    Four qa = quarter(a), qb = quarter(b), qc = quarter(c), qd = quarter(d);
    Four ac = pairs_low(qa, qc) + pairs_high(qa, qc);  /* a0+a2 c0+c2 a1+a3 c1+c3 */
    Four bd = pairs_low(qb, qd) + pairs_high(qb, qd);
    return pairs_low(ac, bd) + pairs_high(ac, bd);
}

/* The largest of 16 numbers, none of which is NaN */
INLINE float max_of(Floats v) {
    float x[16];
    memcpy(x, &v, sizeof x);
    UNROLL for (int half = 8; half; half /= 2)
        UNROLL for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}

/* Integers in the low bits of a float: adding it rounds to the nearest integer */
static const float ROUNDING = 12582912.f;  /* 1.5 * 2^23 */

/* e^x for x <= 0, by a polynomial of 2^f for -1/2 <= f <= 1/2 with an error of at most 2e-8.  The
   product with log2(e) has two parts, or its rounding error would grow with x.  NaN stays NaN. */
INLINE Floats exp_negative(Floats x) {
    const Floats log2_e = all(1.44269502f), rest = all(1.9259630e-8f), rounding = all(ROUNDING + 127);
    x = max(all(-87.f), x);
    Floats shifted = add(mul(x, log2_e), rounding), whole = sub(shifted, rounding);
    Floats f = mul_add(x, rest, mul_add(x, log2_e, sub(all(-0.f), whole)));
    Floats sum = all(1.5353362e-4f);
    sum = mul_add(sum, f, all(1.3398875e-3f));
    sum = mul_add(sum, f, all(9.6184369e-3f));
    sum = mul_add(sum, f, all(5.5503324e-2f));
    sum = mul_add(sum, f, all(2.4022648e-1f));
    sum = mul_add(sum, f, all(6.9314718e-1f));
    sum = mul_add(sum, f, all(1.f));
    return mul(sum, EACH(Floats, (FloatReg)((IntReg)shifted.part[p] << 23)));
}

/* x * sigmoid(y): with z = e^-|y|, the sigmoid is 1 / (1 + z), or z / (1 + z) if y < 0 */
INLINE Floats mul_sigmoid(Floats x, Floats y) {
    Floats one = all(1.f);
    Floats z = exp_negative(EACH(Floats, (FloatReg)((IntReg)y.part[p] | INT32_MIN)));
    Ints negative = EACH(Ints, (IntReg)(y.part[p] < 0));
    Floats numerator = EACH(Floats, (FloatReg)((negative.part[p] & (IntReg)z.part[p]) |
                                               (~negative.part[p] & (IntReg)one.part[p])));
    return EACH(Floats, x.part[p] * numerator.part[p] / (one.part[p] + z.part[p]));
}
