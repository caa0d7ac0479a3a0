#version 450
#extension GL_EXT_control_flow_attributes : require
// reduce, F32 wire: the sum of SOURCES slices into the tensor, associated as
// llama.cpp's own butterfly associates it, so that the bits are those of stock.

layout(local_size_x = 256) in;

layout(constant_id = 0) const uint SOURCES = 2; // 1..16
layout(constant_id = 1) const uint OWN = 0;     // the source that is the tensor itself; SOURCES: none
layout(constant_id = 2) const uint PEERS = 1;   // the others
layout(constant_id = 3) const uint PUBLISH = 0; // 1: the sum also goes to binding 2

layout(binding = 0) buffer Tensor { float tensor[]; };
layout(binding = 1) readonly buffer Peer { float value[]; } peer[PEERS];
layout(binding = 2) writeonly buffer Staging { float staging[]; };

layout(push_constant) uniform Push {
    uint count;        // elements
    uint tensorOffset; // of the first, in the tensor binding
    uint zeroSources;  // bit s: source s is +0.0, its memory is not read
    uint reserved;
};

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i >= count) {
        return;
    }
    precise float v[16];
    [[unroll]] for (uint s = 0; s < SOURCES; s++) {
        // The mask is not known to the compiler: a zero it could see might be
        // dropped from the sum, and -0 + +0 would stay -0.
        if ((zeroSources >> s & 1u) != 0u) {
            v[s] = 0.0;
        } else if (s == OWN) {
            v[s] = tensor[tensorOffset + i];
        } else {
            v[s] = peer[s < OWN ? s : s - 1].value[i];
        }
    }
    // Ranks beyond the largest power of two are folded in first, then pairs at
    // half the distance each time (allreduce_fallback in ggml-backend-meta.cpp).
    const uint p = 1u << findMSB(SOURCES);
    [[unroll]] for (uint s = p; s < SOURCES; s++) {
        v[s - p] = v[s - p] + v[s];
    }
    [[unroll]] for (uint d = p / 2; d >= 1; d /= 2) {
        [[unroll]] for (uint s = 0; s < d; s++) {
            v[s] = v[s] + v[s + d];
        }
    }
    tensor[tensorOffset + i] = v[0];
    if (PUBLISH != 0u) {
        staging[i] = v[0];
    }
}
