#version 450
#extension GL_GOOGLE_include_directive : require
// reduce, BF16 wire.
#define WIRE_BF16
#include "reduce16.glsl"
