/* AMX tiles in plain C, to test their kernel on any processor: `cc -include emulated_tiles.h` */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define EMULATE_TILES
typedef union { uint8_t u[16][64]; int8_t s[16][64]; int32_t sum[16][16]; } EmulatedTile;
static _Thread_local EmulatedTile tiles_[8];
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
#define _tile_loadconfig(config) ((void)(config))
#define _tile_release() ((void)0)
#define _tile_loadd(t, from, ld)                                                                   \
    for (long i_ = 0; i_ < 16; i_++) memcpy(tiles_[t].u[i_], (const char *)(from) + i_ * (ld), 64)
#define _tile_stored(t, to, ld)                                                                    \
    for (long i_ = 0; i_ < 16; i_++) memcpy((char *)(to) + i_ * (ld), tiles_[t].u[i_], 64)
#define _tile_dpbusd(t, a, b)                                                                      \
    for (long i_ = 0; i_ < 16; i_++)                                                               \
        for (long j_ = 0; j_ < 16; j_++)                                                           \
            for (long k_ = 0; k_ < 64; k_++)                                                       \
                tiles_[t].sum[i_][j_] += tiles_[a].u[i_][k_] * tiles_[b].s[k_ / 4][4 * j_ + k_ % 4]
