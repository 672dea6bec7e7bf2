// Dropout's random bits, as the kernels draw them (triton_src/features.py).
#pragma once

#include <array>
#include <cstdint>

namespace flashtri::op {

// Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): 128 random bits.
inline std::array<uint32_t, 4> philox(uint64_t seed, std::array<uint32_t, 4> counter) {
  uint32_t key_0 = static_cast<uint32_t>(seed), key_1 = static_cast<uint32_t>(seed >> 32);
  auto& [c0, c1, c2, c3] = counter;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c0, b = uint64_t{0xCD9E8D57} * c2;
    counter = {static_cast<uint32_t>(b >> 32) ^ c1 ^ key_0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ c3 ^ key_1, static_cast<uint32_t>(a)};
    key_0 += 0x9E3779B9;
    key_1 += 0xBB67AE85;
  }
  return counter;
}

// Writes 1 where key `begin + i` of row `row` is kept, else 0, for i below `count`. head: b * Hq + h.
//
// A draw's 16-bit numbers go to 8 keys of 32 neighbours: the pairs that lie equally far after multiples of 8, which one
// GPU thread holds (triton_src/features.py). A key is kept where its number reaches the threshold.
inline void fill_kept(const int64_t* rng_state, int32_t threshold, int64_t head, int64_t row, int64_t begin,
                      int64_t count, bool* kept) {
  std::array<std::array<uint32_t, 4>, 4> draws{};  // of the 32 keys that hold the current one
  for (int64_t i = 0; i < count; ++i) {
    const int64_t key = begin + i;
    if (i == 0 || key % 32 == 0) {
      for (int64_t draw = 0; draw < 4; ++draw) {
        draws[draw] = philox(rng_state[0], {static_cast<uint32_t>(key / 32 * 4 + draw), static_cast<uint32_t>(row),
                                            static_cast<uint32_t>(head), static_cast<uint32_t>(rng_state[1])});
      }
    }
    const uint32_t word = draws[key % 8 / 2][key % 32 / 8];
    kept[i] = static_cast<int32_t>(key % 2 == 0 ? word & 0xFFFF : word >> 16) >= threshold;
  }
}

}  // namespace flashtri::op
