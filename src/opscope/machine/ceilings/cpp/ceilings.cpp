// Peak rates of this machine: multiply-accumulates, elementwise arithmetic, bandwidth, and the cost of sharing work.
//
//   ceilings THREADS SECONDS LARGEST LEVEL...
//
// Each level is a kernel of the tables below. The caller names only levels that the CPU has and that are to count; a
// level that the compiler does not know is left out. The answer is JSON: the share of the time in which the measuring
// thread had a processor, and for each probe the work of one run and the duration of every run in ns.
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int kPasses = 3;             // over all probes, so that a short disturbance does not hit every run of one
constexpr size_t kNear = 16 << 10;     // bytes of elementwise arithmetic: in the first cache of any CPU
constexpr size_t kSmallest = 32 << 10; // bytes of the smallest working set
constexpr size_t kRunBytes = 1 << 20;  // that a run of a smaller working set passes over
constexpr int64_t kSteps = 4096;       // of a multiplying kernel in a run
constexpr int kHandovers = 64;         // of next to no work in a run

int64_t now(clockid_t clock = CLOCK_MONOTONIC) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

// ---- arithmetic

// Twelve accumulators that do not depend on each other hide the latency of any multiply-accumulate and still fit into
// sixteen registers beside both operands.
constexpr int kAccumulators = 12;

// A kernel that multiplies and accumulates: the empty asm hides both operands from the optimiser, which else would
// compute a product once, and keeps every accumulator.
#define MULTIPLYING(NAME, TARGET, REGISTER, ACC, OPERAND, ZERO, SOME, STEP)      \
  TARGET void NAME(int64_t steps) {                                             \
    OPERAND x = SOME, y = SOME;                                                 \
    TWELVE_ACCUMULATORS(ACC, ZERO)                                              \
    for (int64_t i = 0; i < steps; ++i) {                                       \
      TWELVE_STEPS(STEP, REGISTER)                                              \
    }                                                                           \
    TWELVE_KEPT(REGISTER)                                                       \
  }
#define TWELVE_ACCUMULATORS(ACC, ZERO)                                                                      \
  ACC a0 = ZERO, a1 = ZERO, a2 = ZERO, a3 = ZERO, a4 = ZERO, a5 = ZERO, a6 = ZERO, a7 = ZERO, a8 = ZERO,    \
      a9 = ZERO, a10 = ZERO, a11 = ZERO;
#define ONE_STEP(STEP, REGISTER, A)              \
  asm volatile("" : "+" REGISTER(x), "+" REGISTER(y)); \
  A = STEP(A, x, y);
#define TWELVE_STEPS(STEP, REGISTER)                                                                             \
  ONE_STEP(STEP, REGISTER, a0)                                                                                   \
  ONE_STEP(STEP, REGISTER, a1)                                                                                   \
  ONE_STEP(STEP, REGISTER, a2)                                                                                   \
  ONE_STEP(STEP, REGISTER, a3)                                                                                   \
  ONE_STEP(STEP, REGISTER, a4)                                                                                   \
  ONE_STEP(STEP, REGISTER, a5)                                                                                   \
  ONE_STEP(STEP, REGISTER, a6)                                                                                   \
  ONE_STEP(STEP, REGISTER, a7)                                                                                   \
  ONE_STEP(STEP, REGISTER, a8)                                                                                   \
  ONE_STEP(STEP, REGISTER, a9)                                                                                   \
  ONE_STEP(STEP, REGISTER, a10)                                                                                  \
  ONE_STEP(STEP, REGISTER, a11)
#define KEPT(REGISTER, A) asm volatile("" ::REGISTER(A));
#define TWELVE_KEPT(REGISTER)                                                                                    \
  KEPT(REGISTER, a0) KEPT(REGISTER, a1) KEPT(REGISTER, a2) KEPT(REGISTER, a3) KEPT(REGISTER, a4)                 \
  KEPT(REGISTER, a5) KEPT(REGISTER, a6) KEPT(REGISTER, a7) KEPT(REGISTER, a8) KEPT(REGISTER, a9)                 \
  KEPT(REGISTER, a10) KEPT(REGISTER, a11)

// Kernels that pass over memory, 8 vectors a step: read, copy, and an update in place with one operation.
#define PASSING(NAME, TARGET, REGISTER, VECTOR, LOAD, STORE, APPLY, BYTE, ZERO)                   \
  TARGET void NAME##_read(char*, const char* from, size_t size) {                                 \
    for (size_t at = 0; at < size; at += 8 * BYTE) {                                              \
      for (int k = 0; k < 8; ++k) {                                                               \
        VECTOR v = LOAD(from + at + k * BYTE);                                                    \
        asm volatile("" ::REGISTER(v));                                                           \
      }                                                                                           \
    }                                                                                             \
  }                                                                                               \
  TARGET void NAME##_copy(char* to, const char* from, size_t size) {                              \
    for (size_t at = 0; at < size; at += 4 * BYTE) {                                              \
      for (int k = 0; k < 4; ++k) STORE(to + at + k * BYTE, LOAD(from + at + k * BYTE));          \
    }                                                                                             \
  }                                                                                               \
  TARGET void NAME##_update(char* to, const char*, size_t size) {                                 \
    VECTOR limit = ZERO;                                                                          \
    asm volatile("" : "+" REGISTER(limit));                                                       \
    for (size_t at = 0; at < size; at += 4 * BYTE) {                                              \
      for (int k = 0; k < 4; ++k) STORE(to + at + k * BYTE, APPLY(LOAD(to + at + k * BYTE), limit)); \
    }                                                                                             \
  }

struct Multiplying {
  const char* level;
  const char* dtype;
  void (*run)(int64_t steps);
  int64_t (*macs)();  // of one step
};
struct Passing {
  const char* level;
  const char* dtype;  // of the operation of an update
  int width;          // bytes of one element
  void (*read)(char*, const char*, size_t);
  void (*copy)(char*, const char*, size_t);
  void (*update)(char*, const char*, size_t);
};
#define MACS(LANES) [] { return int64_t{LANES} * kAccumulators; }

#if defined(__x86_64__)

#define TARGET(FEATURES) __attribute__((target(FEATURES)))

#define SSE_F32(a, x, y) _mm_add_ps(a, _mm_mul_ps(x, y))
#define SSE_I8(a, x, y) _mm_add_epi32(a, _mm_madd_epi16(x, y))
#define AVX_F32(a, x, y) _mm256_add_ps(a, _mm256_mul_ps(x, y))
#define FMA_F32(a, x, y) _mm256_fmadd_ps(x, y, a)
#define AVX2_I8(a, x, y) _mm256_add_epi32(a, _mm256_madd_epi16(x, y))
#define AVX512_F32(a, x, y) _mm512_fmadd_ps(x, y, a)
#define AVX512_I8(a, x, y) _mm512_add_epi32(a, _mm512_madd_epi16(x, y))
MULTIPLYING(sse2_f32, TARGET("sse2"), "x", __m128, __m128, _mm_setzero_ps(), _mm_set1_ps(1), SSE_F32)
MULTIPLYING(sse2_i8, TARGET("sse2"), "x", __m128i, __m128i, _mm_setzero_si128(), _mm_set1_epi16(1), SSE_I8)
MULTIPLYING(avx_f32, TARGET("avx"), "x", __m256, __m256, _mm256_setzero_ps(), _mm256_set1_ps(1), AVX_F32)
MULTIPLYING(fma3_f32, TARGET("avx,fma"), "x", __m256, __m256, _mm256_setzero_ps(), _mm256_set1_ps(1), FMA_F32)
MULTIPLYING(avx2_i8, TARGET("avx2"), "x", __m256i, __m256i, _mm256_setzero_si256(), _mm256_set1_epi16(1), AVX2_I8)
MULTIPLYING(avx512f_f32, TARGET("avx512f"), "v", __m512, __m512, _mm512_setzero_ps(), _mm512_set1_ps(1), AVX512_F32)
MULTIPLYING(avx512bw_i8, TARGET("avx512f,avx512bw"), "v", __m512i, __m512i, _mm512_setzero_si512(),
            _mm512_set1_epi16(1), AVX512_I8)
#define VNNI_I8(a, x, y) _mm512_dpbusd_epi32(a, x, y)
MULTIPLYING(avx512vnni_i8, TARGET("avx512f,avx512vnni"), "v", __m512i, __m512i, _mm512_setzero_si512(),
            _mm512_set1_epi8(1), VNNI_I8)
#if (defined(__clang__) && __clang_major__ >= 13) || (!defined(__clang__) && __GNUC__ >= 12)
#define NEWER_LEVELS 1
#define AVXVNNI_I8(a, x, y) _mm256_dpbusd_avx_epi32(a, x, y)
#define BF16_BF16(a, x, y) _mm512_dpbf16_ps(a, (__m512bh)(x), (__m512bh)(y))
#define FP16_F16(a, x, y) _mm512_fmadd_ph(x, y, a)
MULTIPLYING(avxvnni_i8, TARGET("avx2,avxvnni"), "x", __m256i, __m256i, _mm256_setzero_si256(), _mm256_set1_epi8(1),
            AVXVNNI_I8)
MULTIPLYING(avx512bf16_bf16, TARGET("avx512f,avx512bf16"), "v", __m512, __m512i, _mm512_setzero_ps(),
            _mm512_set1_epi16(0x3F80), BF16_BF16)
MULTIPLYING(avx512fp16_f16, TARGET("avx512f,avx512fp16"), "v", __m512h, __m512h, _mm512_setzero_ph(),
            _mm512_set1_ph(1), FP16_F16)
#endif

// The tile unit: four accumulating tiles of 16 rows with 64 bytes, one tile for each operand.
#if defined(NEWER_LEVELS) && defined(__linux__)
#define TILES 1
struct alignas(64) TileShape {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
};
// Not local to a kernel: to GCC the intrinsic reads the first 8 bytes alone, and it would leave out stores of the others.
const TileShape kTileShape;
#define TILE_KERNEL(NAME, FEATURES, MULTIPLY)                           \
  TARGET("amx-tile," FEATURES) void NAME(int64_t steps) {               \
    _tile_loadconfig(&kTileShape);                                      \
    _tile_zero(0);                                                      \
    _tile_zero(1);                                                      \
    _tile_zero(2);                                                      \
    _tile_zero(3);                                                      \
    _tile_zero(4);                                                      \
    _tile_zero(5);                                                      \
    for (int64_t i = 0; i < steps; ++i) {                               \
      MULTIPLY(0, 4, 5);                                                \
      MULTIPLY(1, 4, 5);                                                \
      MULTIPLY(2, 4, 5);                                                \
      MULTIPLY(3, 4, 5);                                                \
    }                                                                   \
    _tile_release();                                                    \
  }
TILE_KERNEL(amx_int8_i8, "amx-int8", _tile_dpbssd)
TILE_KERNEL(amx_bf16_bf16, "amx-bf16", _tile_dpbf16ps)
#endif

#define SSE_LOAD(p) _mm_loadu_ps(reinterpret_cast<const float*>(p))
#define SSE_STORE(p, v) _mm_storeu_ps(reinterpret_cast<float*>(p), v)
#define SSE_ILOAD(p) _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))
#define SSE_ISTORE(p, v) _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v)
#define AVX_LOAD(p) _mm256_loadu_ps(reinterpret_cast<const float*>(p))
#define AVX_STORE(p, v) _mm256_storeu_ps(reinterpret_cast<float*>(p), v)
#define AVX_ILOAD(p) _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))
#define AVX_ISTORE(p, v) _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v)
#define AVX512_LOAD(p) _mm512_loadu_ps(p)
#define AVX512_STORE(p, v) _mm512_storeu_ps(p, v)
#define AVX512_ILOAD(p) _mm512_loadu_si512(p)
#define AVX512_ISTORE(p, v) _mm512_storeu_si512(p, v)
PASSING(sse2_f, TARGET("sse2"), "x", __m128, SSE_LOAD, SSE_STORE, _mm_max_ps, 16, _mm_setzero_ps())
PASSING(sse2_b, TARGET("sse2"), "x", __m128i, SSE_ILOAD, SSE_ISTORE, _mm_adds_epi8, 16, _mm_setzero_si128())
PASSING(avx_f, TARGET("avx"), "x", __m256, AVX_LOAD, AVX_STORE, _mm256_max_ps, 32, _mm256_setzero_ps())
PASSING(avx2_b, TARGET("avx2"), "x", __m256i, AVX_ILOAD, AVX_ISTORE, _mm256_adds_epi8, 32, _mm256_setzero_si256())
PASSING(avx512_f, TARGET("avx512f"), "v", __m512, AVX512_LOAD, AVX512_STORE, _mm512_max_ps, 64, _mm512_setzero_ps())
PASSING(avx512_b, TARGET("avx512f,avx512bw"), "v", __m512i, AVX512_ILOAD, AVX512_ISTORE, _mm512_adds_epi8, 64,
        _mm512_setzero_si512())

const std::vector<Multiplying> kMultiplying = {
    {"sse2", "f32", sse2_f32, MACS(4)},
    {"sse2", "i8", sse2_i8, MACS(8)},
    {"avx", "f32", avx_f32, MACS(8)},
    {"fma3", "f32", fma3_f32, MACS(8)},
    {"avx2", "i8", avx2_i8, MACS(16)},
    {"avx512f", "f32", avx512f_f32, MACS(16)},
    {"avx512bw", "i8", avx512bw_i8, MACS(32)},
    {"avx512vnni", "i8", avx512vnni_i8, MACS(64)},
#ifdef NEWER_LEVELS
    {"avxvnni", "i8", avxvnni_i8, MACS(32)},
    {"avx512bf16", "bf16", avx512bf16_bf16, MACS(32)},
    {"avx512fp16", "f16", avx512fp16_f16, MACS(32)},
#endif
#ifdef TILES
    {"amx_int8", "i8", amx_int8_i8, [] { return int64_t{4 * 16 * 16 * 64}; }},
    {"amx_bf16", "bf16", amx_bf16_bf16, [] { return int64_t{4 * 16 * 16 * 32}; }},
#endif
};
const std::vector<Passing> kPassing = {
    {"sse2", "f32", 4, sse2_f_read, sse2_f_copy, sse2_f_update},
    {"sse2", "i8", 1, sse2_b_read, sse2_b_copy, sse2_b_update},
    {"avx", "f32", 4, avx_f_read, avx_f_copy, avx_f_update},
    {"avx2", "i8", 1, avx2_b_read, avx2_b_copy, avx2_b_update},
    {"avx512f", "f32", 4, avx512_f_read, avx512_f_copy, avx512_f_update},
    {"avx512bw", "i8", 1, avx512_b_read, avx512_b_copy, avx512_b_update},
};

#elif defined(__aarch64__)

#if defined(__clang__)
#define TARGET(FEATURE) __attribute__((target(FEATURE)))
#else
#define TARGET(FEATURE) __attribute__((target("arch=armv8.2-a+" FEATURE)))
#endif
#define BASE

#define NEON_F32(a, x, y) vfmaq_f32(a, x, y)
#define NEON_I8(a, x, y) vmlal_s16(a, x, y)
#define NEON_F16(a, x, y) vfmaq_f16(a, x, y)
#define DOT_I8(a, x, y) vdotq_s32(a, x, y)
#define I8MM_I8(a, x, y) vmmlaq_s32(a, x, y)
#define BF16_BF16(a, x, y) vbfmmlaq_f32(a, vreinterpretq_bf16_u16(x), vreinterpretq_bf16_u16(y))
MULTIPLYING(neon_f32, BASE, "w", float32x4_t, float32x4_t, vdupq_n_f32(0), vdupq_n_f32(1), NEON_F32)
MULTIPLYING(neon_i8, BASE, "w", int32x4_t, int16x4_t, vdupq_n_s32(0), vdup_n_s16(1), NEON_I8)
MULTIPLYING(fp16arith_f16, TARGET("fp16"), "w", float16x8_t, float16x8_t, vreinterpretq_f16_u16(vdupq_n_u16(0)),
            vreinterpretq_f16_u16(vdupq_n_u16(0x3C00)), NEON_F16)
MULTIPLYING(dot_i8, TARGET("dotprod"), "w", int32x4_t, int8x16_t, vdupq_n_s32(0), vdupq_n_s8(1), DOT_I8)
MULTIPLYING(i8mm_i8, TARGET("i8mm"), "w", int32x4_t, int8x16_t, vdupq_n_s32(0), vdupq_n_s8(1), I8MM_I8)
MULTIPLYING(bf16_bf16, TARGET("bf16"), "w", float32x4_t, uint16x8_t, vdupq_n_f32(0), vdupq_n_u16(0x3F80), BF16_BF16)

// Scalable vectors and the matrix extension are written in assembly: their length is known only where they run, and
// the modes of the matrix extension are not known to every compiler.
#define ALL_VECTORS                                                                                             \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", \
      "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"
#define SVE_STEP(OP, WIDE, NARROW)                                              \
  OP " z0." WIDE ", " NARROW "\n" OP " z1." WIDE ", " NARROW "\n"               \
  OP " z2." WIDE ", " NARROW "\n" OP " z3." WIDE ", " NARROW "\n"               \
  OP " z4." WIDE ", " NARROW "\n" OP " z5." WIDE ", " NARROW "\n"               \
  OP " z6." WIDE ", " NARROW "\n" OP " z7." WIDE ", " NARROW "\n"               \
  OP " z8." WIDE ", " NARROW "\n" OP " z9." WIDE ", " NARROW "\n"               \
  OP " z10." WIDE ", " NARROW "\n" OP " z11." WIDE ", " NARROW "\n"
#define SVE_KERNEL(NAME, EXTENSION, STEP)                                                                        \
  void NAME(int64_t steps) {                                                                                    \
    asm volatile(".arch_extension sve\n" EXTENSION "ptrue p0.b\n"                                               \
                 "mov z30.b, #0\nmov z31.b, #0\n"                                                               \
                 "mov z0.b, #0\nmov z1.b, #0\nmov z2.b, #0\nmov z3.b, #0\nmov z4.b, #0\nmov z5.b, #0\n"         \
                 "mov z6.b, #0\nmov z7.b, #0\nmov z8.b, #0\nmov z9.b, #0\nmov z10.b, #0\nmov z11.b, #0\n"       \
                 "1:\n" STEP "subs %0, %0, #1\nb.ne 1b\n.arch_extension nosve\n"                                \
                 : "+r"(steps)::"cc", "memory", ALL_VECTORS);                                                   \
  }
SVE_KERNEL(sve_f32, "", SVE_STEP("fmla", "s", "p0/m, z30.s, z31.s"))
SVE_KERNEL(sve_f16, "", SVE_STEP("fmla", "h", "p0/m, z30.h, z31.h"))
SVE_KERNEL(sve_i8, "", SVE_STEP("sdot", "s", "z30.b, z31.b"))

// Streaming mode and the array are switched on around the loop; four tiles accumulate.
#define SME_STEP(OP, NARROW)                                                                                    \
  OP " za0.s, p0/m, p0/m, z0." NARROW ", z1." NARROW "\n" OP " za1.s, p0/m, p0/m, z0." NARROW ", z1." NARROW "\n" \
  OP " za2.s, p0/m, p0/m, z0." NARROW ", z1." NARROW "\n" OP " za3.s, p0/m, p0/m, z0." NARROW ", z1." NARROW "\n"
#define SME_KERNEL(NAME, STEP)                                                                                  \
  void NAME(int64_t steps) {                                                                                    \
    asm volatile(".arch_extension sme\nsmstart\nptrue p0.b\nmov z0.b, #0\nmov z1.b, #0\nzero {za}\n"            \
                 "1:\n" STEP "subs %0, %0, #1\nb.ne 1b\nsmstop\n.arch_extension nosme\n"                        \
                 : "+r"(steps)::"cc", "memory", ALL_VECTORS);                                                   \
  }
SME_KERNEL(sme_f32, SME_STEP("fmopa", "s"))
SME_KERNEL(sme_f16, SME_STEP("fmopa", "h"))
SME_KERNEL(sme_bf16, SME_STEP("bfmopa", "h"))
SME_KERNEL(sme_i8, SME_STEP("smopa", "b"))

int64_t vector_bytes() {
  int64_t size = 0;
  asm volatile(".arch_extension sve\nrdvl %0, #1\n.arch_extension nosve\n" : "=r"(size));
  return size;
}
int64_t streaming_bytes() {
  int64_t size = 0;
  asm volatile(".arch_extension sme\nrdsvl %0, #1\n.arch_extension nosme\n" : "=r"(size));
  return size;
}
// Each outer product of one tile multiplies 32-bit lanes by 32-bit lanes, of `deep` narrow numbers each.
int64_t outer_products(int64_t deep) { return 4 * (streaming_bytes() / 4) * (streaming_bytes() / 4) * deep; }

#define NEON_LOAD(p) vld1q_f32(reinterpret_cast<const float*>(p))
#define NEON_STORE(p, v) vst1q_f32(reinterpret_cast<float*>(p), v)
#define NEON_ILOAD(p) vld1q_s8(reinterpret_cast<const int8_t*>(p))
#define NEON_ISTORE(p, v) vst1q_s8(reinterpret_cast<int8_t*>(p), v)
#define HALF_LOAD(p) vreinterpretq_f16_s8(NEON_ILOAD(p))
#define HALF_STORE(p, v) NEON_ISTORE(p, vreinterpretq_s8_f16(v))
PASSING(neon_f, BASE, "w", float32x4_t, NEON_LOAD, NEON_STORE, vmaxq_f32, 16, vdupq_n_f32(0))
PASSING(neon_b, BASE, "w", int8x16_t, NEON_ILOAD, NEON_ISTORE, vqaddq_s8, 16, vdupq_n_s8(0))
PASSING(neon_h, TARGET("fp16"), "w", float16x8_t, HALF_LOAD, HALF_STORE, vmaxq_f16, 16,
        vreinterpretq_f16_u16(vdupq_n_u16(0)))

const std::vector<Multiplying> kMultiplying = {
    {"neon", "f32", neon_f32, MACS(4)},
    {"neon", "i8", neon_i8, MACS(4)},
    {"fp16arith", "f16", fp16arith_f16, MACS(8)},
    {"dot", "i8", dot_i8, MACS(16)},
    {"i8mm", "i8", i8mm_i8, MACS(32)},
    {"bf16", "bf16", bf16_bf16, MACS(16)},
    {"sve", "f32", sve_f32, [] { return vector_bytes() / 4 * kAccumulators; }},
    {"sve", "f16", sve_f16, [] { return vector_bytes() / 2 * kAccumulators; }},
    {"sve", "i8", sve_i8, [] { return vector_bytes() * kAccumulators; }},
    {"sme", "f32", sme_f32, [] { return outer_products(1); }},
    {"sme", "f16", sme_f16, [] { return outer_products(2); }},
    {"sme", "bf16", sme_bf16, [] { return outer_products(2); }},
    {"sme", "i8", sme_i8, [] { return outer_products(4); }},
};
const std::vector<Passing> kPassing = {
    {"neon", "f32", 4, neon_f_read, neon_f_copy, neon_f_update},
    {"neon", "i8", 1, neon_b_read, neon_b_copy, neon_b_update},
    {"fp16arith", "f16", 2, neon_h_read, neon_h_copy, neon_h_update},
};

#else
const std::vector<Multiplying> kMultiplying = {};
const std::vector<Passing> kPassing = {};
#endif

// ---- threads

// Threads that wait for work without sleeping, as the pools of runtimes do; the caller is the first of them.
class Team {
 public:
  explicit Team(int size) : size_(size) {
    for (int number = 1; number < size; ++number) threads_.emplace_back([this, number] { follow(number); });
  }
  ~Team() {
    work_ = nullptr;
    round_.fetch_add(1);
    for (auto& thread : threads_) thread.join();
  }
  int size() const { return size_; }
  void run(const std::function<void(int)>& work) {
    work_ = &work;
    busy_.store(size_ - 1);
    round_.fetch_add(1, std::memory_order_release);
    work(0);
    for (int spins = 0; busy_.load(std::memory_order_acquire) > 0;) rest(++spins);
  }

 private:
  static void rest(int spins) {
    if (spins % 1024 == 0) sched_yield();
  }
  void follow(int number) {
    for (int64_t seen = 0;;) {
      for (int spins = 0; round_.load(std::memory_order_acquire) == seen;) rest(++spins);
      ++seen;
      if (!work_) return;
      (*work_)(number);
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }
  int size_;
  std::atomic<int64_t> round_{0};
  std::atomic<int> busy_{0};
  const std::function<void(int)>* work_ = nullptr;
  std::vector<std::thread> threads_;
};

// ---- probes

struct Probe {
  std::string kind, name, level;
  size_t size;
  int64_t work;  // of one run, by all threads
  std::function<void(int)> run;
  std::vector<int64_t> durations;
};

int64_t timed(Team& team, const Probe& probe) {
  const int64_t begun = now();
  team.run(probe.run);
  return now() - begun;
}

class Probes {
 public:
  Probes(Team& team, size_t largest) : team_(team), largest_(largest) {
    constexpr size_t kPage = 4096;  // macOS gives whole multiples of the alignment alone
    memory_ = static_cast<char*>(aligned_alloc(kPage, (largest + kPage - 1) / kPage * kPage));
    if (!memory_) throw std::bad_alloc();
    team.run([&](int number) { memset(share(number, largest), 0, part(largest)); });
  }
  ~Probes() { free(memory_); }

  void multiplying(const Multiplying& kernel) {
    const int64_t work = kernel.macs() * kSteps * team_.size();
    add({"mac", kernel.dtype, kernel.level, 0, work, [run = kernel.run](int) { run(kSteps); }, {}});
  }
  void elementwise(const Passing& kernel) {
    const int64_t work = int64_t{kRunBytes} / kernel.width * team_.size();
    auto run = [this, update = kernel.update](int number) {
      char* place = share(number, kNear * team_.size());
      for (size_t done = 0; done < kRunBytes; done += kNear) update(place, nullptr, kNear);
    };
    add({"element", kernel.dtype, kernel.level, kNear, work, run, {}});
  }
  // All threads pass over parts of their own; half of the set is copied to the other half.
  void passing(const Passing& kernel) {
    for (size_t size = kSmallest; size <= largest_; size *= 2) {
      const size_t own = part(size), times = std::max<size_t>(1, kRunBytes / own);
      const int64_t bytes = int64_t(own * times) * team_.size();
      auto pass = [=](void (*run)(char*, const char*, size_t), size_t count, size_t from) {
        return [=](int number) {
          char* place = share(number, size);
          for (size_t time = 0; time < times; ++time) run(place, place + from, count);
        };
      };
      add({"memory", "read", kernel.level, size, bytes, pass(kernel.read, own, 0), {}});
      add({"memory", "update", kernel.level, size, 2 * bytes, pass(kernel.update, own, 0), {}});
      add({"memory", "copy", kernel.level, size, bytes, pass(kernel.copy, own / 2, own / 2), {}});
      if (size >= kRunBytes) {  // the C library may pass by the caches, as copies of runtimes do
        auto copy = [](char* to, const char* from, size_t count) { memcpy(to, from, count); };
        add({"memory", "copy", "libc", size, bytes, pass(copy, own / 2, own / 2), {}});
      }
    }
  }
  void measure(double seconds) {
    const int64_t begun = now(), computing = now(CLOCK_THREAD_CPUTIME_ID);
    const int64_t share = int64_t(seconds * 1e9 / kPasses / std::max<size_t>(1, probes_.size()));
    for (int pass = 0; pass < kPasses; ++pass) {
      for (auto& probe : probes_) {
        timed(team_, probe);  // the first run wakes units and fills caches
        const int64_t until = now() + share;
        do probe.durations.push_back(timed(team_, probe));
        while (now() < until);
      }
    }
    cpu_share_ = double(now(CLOCK_THREAD_CPUTIME_ID) - computing) / double(now() - begun);
  }
  void handing_over() {
    for (int threads : {1, team_.size()}) {
      Probe probe{"handover", threads > 1 ? "parallel" : "serial", "", 0, kHandovers, nullptr, {}};
      volatile int nothing = 0;
      const std::function<void(int)> tiny = [&](int number) { if (!number) nothing = 0; };
      for (int run = 0; run < 200; ++run) {
        const int64_t begun = now();
        for (int time = 0; time < kHandovers; ++time) threads > 1 ? team_.run(tiny) : tiny(0);
        probe.durations.push_back(now() - begun);
      }
      if (threads == 1 || team_.size() > 1) probes_.push_back(probe);
      if (team_.size() == 1) return;
    }
  }
  void print() const {
    printf("{\"cpu_share\":%.4f,\"probes\":[", cpu_share_);
    for (size_t at = 0; at < probes_.size(); ++at) {
      const Probe& one = probes_[at];
      printf("%s\n{\"kind\":\"%s\",\"name\":\"%s\",\"level\":\"%s\",\"size\":%zu,\"work\":%lld,\"durations\":[",
             at ? "," : "", one.kind.c_str(), one.name.c_str(), one.level.c_str(), one.size,
             static_cast<long long>(one.work));
      for (size_t run = 0; run < one.durations.size(); ++run)
        printf("%s%lld", run ? "," : "", static_cast<long long>(one.durations[run]));
      printf("]}");
    }
    printf("]}\n");
  }

 private:
  void add(Probe probe) { probes_.push_back(std::move(probe)); }
  // What one thread passes over, in whole steps of every kernel.
  size_t part(size_t size) const { return std::max<size_t>(1024, size / team_.size() / 1024 * 1024); }
  char* share(int number, size_t size) const { return memory_ + number * part(size); }

  Team& team_;
  size_t largest_;
  char* memory_;
  double cpu_share_ = 0;
  std::vector<Probe> probes_;
};

void allow_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  syscall(SYS_arch_prctl, kRequest, kTileData);
#endif
}

}  // namespace

int main(int count, char** words) {
  if (count < 5) {
    fprintf(stderr, "usage: %s THREADS SECONDS LARGEST LEVEL...\n", words[0]);
    return 2;
  }
  const std::vector<std::string> levels(words + 4, words + count);
  auto counts = [&](const char* level) { return std::find(levels.begin(), levels.end(), level) != levels.end(); };
  allow_tiles();  // before the first thread, since threads inherit it
  Team team(std::max(1, atoi(words[1])));
  Probes probes(team, std::max<size_t>(kSmallest * team.size(), strtoull(words[3], nullptr, 10)));
  for (const auto& kernel : kMultiplying)
    if (counts(kernel.level)) probes.multiplying(kernel);
  const Passing* widest = nullptr;
  for (const auto& kernel : kPassing) {
    if (!counts(kernel.level)) continue;
    probes.elementwise(kernel);
    if (!strcmp(kernel.dtype, "f32")) widest = &kernel;
  }
  if (widest) probes.passing(*widest);
  probes.measure(atof(words[2]));
  probes.handing_over();
  probes.print();
}
