#version 450
#extension GL_GOOGLE_include_directive : require
// reduce, F16 wire.
#define WIRE_F16
#include "reduce16.glsl"
