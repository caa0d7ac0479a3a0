// reduce, 16-bit wire: the sum of SOURCES slices into the tensor, in float32
// and associated as in reduce_f32.comp. The rank's own slice is in the tensor,
// rounded when it was packed.
#extension GL_EXT_control_flow_attributes : require
#include "wire16.glsl"

layout(constant_id = 0) const uint SOURCES = 2; // 1..16
layout(constant_id = 1) const uint OWN = 0;     // the source that is the tensor itself; SOURCES: none
layout(constant_id = 2) const uint PEERS = 1;   // the others, but at least 1
layout(constant_id = 3) const uint PUBLISH = 0; // 1: the sum also goes to binding 2, and is rounded

layout(binding = 1) readonly buffer Peer { uint word[]; } peer[PEERS];

// What source s contributes.
vec2 operand(uint s) {
    // The mask is not known to the compiler: a zero it could see might be
    // dropped from the sum, and -0 + +0 would stay -0.
    if ((zeroSources >> s & 1u) != 0u || !hasLow()) {
        return vec2(0.0);
    }
    if (s == OWN) {
        return uintBitsToFloat(load());
    }
    const uint p = s < OWN ? s : s - 1u;
#ifdef WIRE_F16
    const uint k = (peer[p].word[wordCount() + gl_WorkGroupID.x] >> 23) - 127u;
#else
    const uint k = 0u;
#endif
    return uintBitsToFloat(decodeWord(peer[p].word[gl_GlobalInvocationID.x], k));
}

void main() {
    precise vec2 v[16];
    [[unroll]] for (uint s = 0; s < SOURCES; s++) {
        v[s] = operand(s);
    }
    // See reduce_f32.comp.
    const uint p = 1u << findMSB(SOURCES);
    [[unroll]] for (uint s = p; s < SOURCES; s++) {
        v[s - p] = v[s - p] + v[s];
    }
    [[unroll]] for (uint d = p / 2; d >= 1; d /= 2) {
        [[unroll]] for (uint s = 0; s < d; s++) {
            v[s] = v[s] + v[s + d];
        }
    }
    uvec2 sum = floatBitsToUint(v[0]);
    if (PUBLISH != 0u) {
        sum = publish(sum);
    }
    store(sum);
}
