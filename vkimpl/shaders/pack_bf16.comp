#version 450
#extension GL_GOOGLE_include_directive : require
// pack, BF16 wire.
#define WIRE_BF16
#include "pack16.glsl"
