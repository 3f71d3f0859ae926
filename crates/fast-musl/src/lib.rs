//! What makes a program fast that is linked with musl: another allocator, and other memory functions. A program takes them
//! with `use fast_musl as _`. Beside another C library this crate does nothing.
//!
//! musl's allocator has one lock. Its `memcmp` compares byte by byte, and its `memcpy` for x86-64 needs dozens of cycles
//! before the first byte. Programs that decode JSON copy and compare short strings most of the time. musl's functions for
//! aarch64 are fast, but for `memcmp`.

// Without this LLVM would turn a loop of `memcpy` into a call of `memcpy`.
#![no_builtins]
#![allow(unsafe_code, reason = "these functions are called with pointers, by the rules of C")]

#[cfg(all(target_arch = "x86_64", any(test, target_env = "musl")))]
mod copies;
#[cfg(target_env = "musl")]
mod exported;
#[cfg(any(test, target_env = "musl"))]
mod order;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
