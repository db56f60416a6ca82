/* Counts what a launch's accesses would cost on a device: sectors of 32 bytes that a warp's request touches, and turns
 * that it takes at the 32 banks of shared memory.
 *
 * Lanes of a warp run one after the other here. A request is what the lanes that came as often to the same instruction
 * asked for; lanes that diverge before an instruction and meet again at it are taken for one request, as they mostly are. */
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>
#include "fibres.h"
#include "traffic.h"

namespace emulation {
struct piece {
    uintptr_t first, end;
};

/* Warp, instruction, how often it was reached; loads and stores of one instruction are none. */
using request_key = std::tuple<int, uintptr_t, uint32_t>;

static std::map<request_key, std::vector<piece>> requests[4]; /* of the running block: loads and stores, shared ones */
static std::unordered_map<uintptr_t, uint32_t> visits[MAX_THREADS];
static std::unordered_map<uintptr_t, uint32_t> touched[2]; /* bytes of each sector, that are read, that are written */

void count_access(uintptr_t address, size_t bytes, bool is_write, bool is_shared, uintptr_t place) {
    const uint32_t visit = visits[running][place]++;
    requests[2 * is_shared + is_write][{running / 32, place, visit}].push_back({address, address + bytes});
}

/* Disjoint pieces, ascending. */
static std::vector<piece> joined(std::vector<piece> pieces) {
    std::sort(pieces.begin(), pieces.end(), [](const piece &a, const piece &b) { return a.first < b.first; });
    std::vector<piece> found;
    for (const piece &p : pieces)
        if (!found.empty() && p.first <= found.back().end) found.back().end = std::max(found.back().end, p.end);
        else found.push_back(p);
    return found;
}

static void count_global(const std::vector<piece> &pieces, requests_of &counts,
                         std::unordered_map<uintptr_t, uint32_t> &bytes_of_sector) {
    uintptr_t last = UINTPTR_MAX;
    counts.requests++;
    for (const piece &p : pieces) {
        counts.bytes += p.end - p.first;
        for (uintptr_t sector = p.first / 32; sector <= (p.end - 1) / 32; sector++) {
            const uintptr_t begin = std::max(p.first, sector * 32) % 32, end = std::min(p.end - sector * 32, uintptr_t{32});
            bytes_of_sector[sector] |= static_cast<uint32_t>((uint64_t{1} << end) - (uint64_t{1} << begin));
            counts.sectors += sector != last;
            last = sector;
        }
    }
}

/* A bank gives one word of 4 bytes a turn, to all lanes that want it. */
static void count_shared(const std::vector<piece> &pieces, turns_of &counts) {
    int64_t words = 0, of_bank[32] = {0};
    uintptr_t last = UINTPTR_MAX;
    for (const piece &p : pieces)
        for (uintptr_t word = p.first / 4; word <= (p.end - 1) / 4; word++) {
            if (word == last) continue;
            last = word;
            words++;
            of_bank[word % 32]++;
        }
    counts.requests++;
    counts.turns += *std::max_element(of_bank, of_bank + 32);
    counts.least_turns += (words + 31) / 32;
}

void end_traffic_of_block(traffic &counts) {
    for (int what = 0; what < 4; what++) {
        for (const auto &[key, pieces] : requests[what]) {
            if (what == 0) count_global(joined(pieces), counts.load, touched[0]);
            else if (what == 1) count_global(joined(pieces), counts.store, touched[1]);
            else count_shared(joined(pieces), counts.shared);
        }
        requests[what].clear();
    }
    for (auto &of_thread : visits) of_thread.clear();
}

void end_traffic(traffic &counts) {
    for (auto &sectors : touched) {
        counts.touched_sectors += static_cast<int64_t>(sectors.size());
        for (const auto &[sector, bytes] : sectors) counts.touched_bytes += __builtin_popcount(bytes);
        sectors.clear();
    }
}
}
