#!/bin/sh
# Usage: cuda_home.sh ENVIRONMENT TARGET
# Gives the CUDA compiler and libraries of an environment's wheels the layout that build scripts expect of CUDA_HOME:
# lib64 beside bin, and libraries under the names a linker looks for. Links only, through the environment's own path.
set -eu
toolkit=$(echo "$1"/lib/python3.*/site-packages/nvidia/cu13)
if [ ! -x "$toolkit/bin/nvcc" ]; then
    echo "$1 has no CUDA compiler of CUDA 13; kernels cannot be compiled on first use" >&2
    exit 0
fi
mkdir -p "$2/lib64"
for name in bin include nvvm; do
    ln -s "$toolkit/$name" "$2/$name"
done
for library in "$toolkit"/lib/*.so.* "$toolkit"/lib/*.a; do
    name=$(basename "$library")
    ln -s "$library" "$2/lib64/$name"
    plain=${name%%.so.*}.so
    case $name in *.so.*) [ -e "$2/lib64/$plain" ] || ln -s "$library" "$2/lib64/$plain" ;; esac
done
