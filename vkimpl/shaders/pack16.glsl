// pack, 16-bit wire: this rank's slice of the tensor into its staging, where
// the peers read it, and back into the tensor what they will read, so that the
// rank itself goes on with the same value.
#include "wire16.glsl"

void main() {
    store(publish(load()));
}
