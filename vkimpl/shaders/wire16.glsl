// A 16-bit wire as the kernels see it: allreduce/codec.go, bit for bit.
//
// An invocation handles the two elements of one word, a workgroup one block of
// 256 elements. Conversion is integer arithmetic throughout: packHalf2x16 may
// round either way and flush denormals, and so may float arithmetic, while all
// ranks must end with the same bits whoever made their GPUs.
//
// The including file defines WIRE_F16 or WIRE_BF16.

layout(local_size_x = 128) in;

layout(binding = 0) buffer Tensor { uint tensor[]; }; // bits of float32
layout(binding = 2) writeonly buffer Staging { uint staging[]; };

layout(push_constant) uniform Push {
    uint count;        // elements
    uint tensorOffset; // of the first, in the tensor binding
    uint zeroSources;  // bit s: source s is +0.0, its memory is not read
    uint reserved;
};

const uint ABS = 0x7fffffffu; // clears the sign
const uint INF = 0x7f800000u; // bits of +Inf; above it, with the sign cleared: NaN

// Words that hold elements. F16 scales, one word a block, follow them.
uint wordCount() { return (count + 1u) / 2u; }

bool hasLow() { return gl_GlobalInvocationID.x < wordCount(); }
bool hasHigh() { return 2u * gl_GlobalInvocationID.x + 1u < count; }

// The invocation's elements of the tensor, +0.0 behind its end.
uvec2 load() {
    const uint at = tensorOffset + 2u * gl_GlobalInvocationID.x;
    return uvec2(hasLow() ? tensor[at] : 0u, hasHigh() ? tensor[at + 1u] : 0u);
}

void store(uvec2 x) {
    const uint at = tensorOffset + 2u * gl_GlobalInvocationID.x;
    if (hasLow()) {
        tensor[at] = x.x;
    }
    if (hasHigh()) {
        tensor[at + 1u] = x.y;
    }
}

#ifdef WIRE_F16

shared uint largest; // finite magnitude of the block, 0 while all are below 65520

uint beyondHalf(uint x) {
    const uint a = x & ABS;
    return a >= 0x477ff000u && a < INF ? a : 0u; // bits of 65520
}

// k of the block's scale 2^k. All invocations take part.
uint blockExponent(uvec2 x) {
    if (gl_LocalInvocationID.x == 0u) {
        largest = 0u;
    }
    barrier();
    const uint mine = max(beyondHalf(x.x), beyondHalf(x.y));
    if (mine != 0u) { // rare, so that the atomics cost nothing
        atomicMax(largest, mine);
    }
    barrier();
    if (largest == 0u) {
        return 0u;
    }
    const uint k = (largest >> 23) - 142u; // largest / 2^k is in [2^15, 2^16)
    return min((largest & 0x7fffffu) >= 0x7ff000u ? k + 1u : k, 112u);
}

// Of x / 2^k, to nearest even; finite values are clamped to +-65504.
uint encode(uint x, uint k) {
    const uint sign = (x >> 16) & 0x8000u;
    uint a = x & ABS;
    if (a > INF) {
        return sign | 0x7e00u | ((a >> 13) & 0x1ffu); // quiet NaN
    }
    if (a == INF) {
        return sign | 0x7c00u;
    }
    if (a < (102u + k) << 23) { // below 2^-25, half of the least denormal
        return sign;
    }
    a = min(a - (k << 23), 0x477fe000u);
    if (a >= 113u << 23) { // at least 2^-14, a normal half
        return sign | ((a + 0xfffu + ((a >> 13) & 1u) - (112u << 23)) >> 13);
    }
    const uint shift = 126u - (a >> 23); // 14 to 24
    const uint m = (a & 0x7fffffu) | 0x800000u;
    return sign | ((m + (1u << (shift - 1u)) - 1u + ((m >> shift) & 1u)) >> shift);
}

uint decode(uint h, uint k) {
    const uint sign = (h & 0x8000u) << 16, a = h & 0x7fffu;
    if (a >= 0x7c00u) {
        return sign | INF | ((a & 0x3ffu) << 13);
    }
    if (a >= 0x400u) {
        return sign | ((a << 13) + ((112u + k) << 23));
    }
    if (a == 0u) {
        return sign;
    }
    const uint top = findMSB(a); // a * 2^-24, a normal float32
    return sign | ((103u + top + k) << 23) | ((a << (23u - top)) & 0x7fffffu);
}

#else

uint blockExponent(uvec2 x) { return 0u; }

uint encode(uint x, uint k) {
    const uint a = x & ABS;
    if (a > INF) {
        return (x >> 16) | 0x40u; // quiet NaN
    }
    if (a < INF && a > 0x7f7f0000u) { // the largest finite bfloat16
        return ((x >> 16) & 0x8000u) | 0x7f7fu;
    }
    return (x + 0x7fffu + ((x >> 16) & 1u)) >> 16; // leaves infinities as they are
}

uint decode(uint h, uint k) { return h << 16; }

#endif

uvec2 decodeWord(uint word, uint k) { return uvec2(decode(word & 0xffffu, k), decode(word >> 16, k)); }

// Encodes the block's elements into the destination and returns them as a
// reader decodes them. All invocations take part, those behind the end with
// +0.0.
uvec2 publish(uvec2 x) {
    const uint k = blockExponent(x);
    const uint word = encode(x.x, k) | (encode(x.y, k) << 16);
    if (hasLow()) {
        staging[gl_GlobalInvocationID.x] = word;
    }
#ifdef WIRE_F16
    if (gl_LocalInvocationID.x == 0u) {
        staging[wordCount() + gl_WorkGroupID.x] = (127u + k) << 23; // float 2^k
    }
#endif
    return decodeWord(word, k);
}
