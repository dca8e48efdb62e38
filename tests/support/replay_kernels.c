/* Repeat kernel calls on any processor: read a recording of `kernel_recorder.py` from standard input,
   make the calls, and write the resulting buffers to standard output.  -D selects the instruction set,
   see `simd.h`. */

#include <stdio.h>

#include "kernels.c"

/* A step of the recording is five numbers:
   BUFFER id, bytes, 0, 0: the content of a buffer, which follows
   POINTER id, at, target, offset: store the address of a buffer, plus offset, in another buffer
   CALL kernel, 0, 0, 0: call a kernel with the arguments in buffer 0
   OUTPUT id, 0, 0, 0: write the content of a buffer
   The kernels are numbered in the order of SIGNATURES in `bindings.py`. */
enum { BUFFER, POINTER, CALL, OUTPUT };
enum { PACK, NORMALIZE, COMPUTE_LAYER, HEAD, LOG_SUMS, ATTEND_SELF, ATTEND_MEMORY, ADVANCE_PAST, ATTEND_CACHED };
enum { MAX_BUFFERS = 1 << 16 };

static struct { char *memory; size bytes; } buffers[MAX_BUFFERS];

static void require(int condition, const char *problem) {
    if (condition) return;
    fprintf(stderr, "replay_kernels: %s\n", problem);
    exit(1);
}

static void read_buffer(size id, size bytes) {
    require(id >= 0 && id < MAX_BUFFERS, "too many buffers");
    if (buffers[id].bytes != bytes) {
        free(buffers[id].memory);
        buffers[id].memory = aligned_alloc(64, (size_t)round_up(bytes, 64));
        buffers[id].bytes = bytes;
        require(buffers[id].memory != NULL, "out of memory");
    }
    require(fread(buffers[id].memory, 1, (size_t)bytes, stdin) == (size_t)bytes, "the recording is truncated");
}

/* Arguments: a pointer, a size and an int */
#define P(i) ((void *)(uintptr_t)a[i])
#define N(i) a[i]
#define I(i) ((int)a[i])

static void call(size kernel, const size *a) {
    switch (kernel) {
    case PACK: pack(P(0), N(1), N(2), P(3), P(4), P(5)); break;
    case NORMALIZE: normalize(P(0), N(1), N(2), P(3), P(4), I(5)); break;
    case COMPUTE_LAYER: compute_layer(P(0), I(1)); break;
    case HEAD: head(P(0), N(1), N(2), P(3), P(4), P(5), P(6), P(7), I(8)); break;
    case LOG_SUMS: log_sums(P(0), N(1), N(2), P(3), I(4)); break;
    case ATTEND_SELF: attend_self(P(0), I(1)); break;
    case ATTEND_MEMORY: attend_memory(P(0), I(1)); break;
    case ADVANCE_PAST: advance_past(N(0), N(1), P(2), P(3), N(4), P(5), N(6), P(7), P(8), N(9), P(10), P(11)); break;
    case ATTEND_CACHED: attend_cached(P(0), I(1)); break;
    default: require(0, "the recording calls an unknown kernel");
    }
}

int main(void) {
    require(enable(0), "this processor cannot run the kernels");
    for (size step[5]; fread(step, sizeof step, 1, stdin) == 1;) {
        if (step[0] == BUFFER) read_buffer(step[1], step[2]);
        if (step[0] == POINTER) {
            char *target = buffers[step[3]].memory + step[4];
            memcpy(buffers[step[1]].memory + step[2], &target, sizeof target);
        }
        if (step[0] == CALL) call(step[1], (const size *)buffers[0].memory);
        if (step[0] == OUTPUT) fwrite(buffers[step[1]].memory, 1, (size_t)buffers[step[1]].bytes, stdout);
    }
    return fflush(stdout) != 0;
}
