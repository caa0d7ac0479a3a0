#version 450
#extension GL_GOOGLE_include_directive : require
// pack, F16 wire.
#define WIRE_F16
#include "pack16.glsl"
