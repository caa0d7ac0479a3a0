#version 450
#extension GL_EXT_control_flow_attributes : require
// relay: a whole AllReduce in one dispatch per rank and no semaphore. Each rank
// publishes its operand in host memory; a host thread copies it into an inbox
// in the peers' own memory; the peers' kernels, already running, wait for it
// there and sum.
//
// A word is 32 bits of payload and the 32-bit sequence number of its reduction,
// written and read as one: it needs neither a flag nor an order between words,
// and cannot be taken for a word of another reduction.
//
// Never polls host memory: NVIDIA's L2 keeps the line that it read first.

layout(local_size_x = 256) in;

layout(constant_id = 0) const uint SOURCES = 2; // ranks
layout(constant_id = 1) const uint OWN = 0;     // this rank
layout(constant_id = 2) const uint PEERS = 2;   // buffers at binding 1: inbox, state
// 1: it is not known that a word is read in one access, and each time anew: fence
// the polls, and take the payload again once its number has been seen.
layout(constant_id = 3) const uint FENCE = 0;

const uint CAPACITY = 65536; // elements; as VKCOMM_RELAY_ELEMENTS
const uint FAILED = 2 * CAPACITY; // the word of a slot that reports a failure

layout(binding = 0) buffer Tensor { float tensor[]; };
// [0] inbox: word[(2 * peer + parity) * CAPACITY + i], peer counted without OWN.
// [1] state: word[group].x, the latest sequence number of each workgroup.
layout(binding = 1) coherent volatile buffer Words { uvec2 word[]; } words[PEERS];
layout(binding = 2) coherent volatile buffer Slot { uvec2 slot[]; };

layout(push_constant) uniform Push {
    uint count;        // elements, at most CAPACITY
    uint tensorOffset; // of the first, in the tensor binding
    uint zeroSources;  // bit OWN: this rank contributes +0.0
    uint spinBound;    // polls of one word before the reduction has failed
};

shared uint failures;

// This rank's operand.
float own(uint i) {
    return (zeroSources >> OWN & 1u) != 0u ? 0.0 : tensor[tensorOffset + i];
}

void main() {
    // Every launch has the same workgroups, each with a counter of its own, so
    // that all ranks agree on the number of a reduction without being told.
    const uint seq = words[1].word[gl_WorkGroupID.x].x + 1u;
    const uint half_ = (seq & 1u) * CAPACITY;
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    if (gl_LocalInvocationIndex == 0) {
        failures = 0u;
    }
    barrier();
    // All of it before the first wait: a peer never waits for a group of ours
    // that has not started.
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        slot[half_ + i] = uvec2(floatBitsToUint(own(i)), seq);
    }
    memoryBarrierBuffer();
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        precise float v[16];
        [[unroll]] for (uint s = 0; s < SOURCES; s++) {
            if (s == OWN) {
                v[s] = own(i);
                continue;
            }
            const uint at = (s < OWN ? s : s - 1u) * 2u * CAPACITY + half_ + i;
            uvec2 word = words[0].word[at];
            for (uint polls = 0u; word.y != seq && polls < spinBound; polls++) {
                if (FENCE != 0u) {
                    memoryBarrierBuffer();
                }
                word = words[0].word[at];
            }
            if (FENCE != 0u) {
                memoryBarrierBuffer();
                word.x = words[0].word[at].x;
            }
            if (word.y != seq) {
                atomicOr(failures, 1u);
                word.x = 0x7fc00000u; // NaN: not to be taken for a sum
            }
            v[s] = uintBitsToFloat(word.x);
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
        tensor[tensorOffset + i] = v[0];
    }
    barrier();
    if (gl_LocalInvocationIndex == 0) {
        words[1].word[gl_WorkGroupID.x].x = seq;
        if (failures != 0u) {
            slot[FAILED] = uvec2(1u, seq);
        }
    }
}
