//! The promises of the agent, kept by the real program: it runs as a process of its own, reads NVIDIA's interface from an
//! ABI fake of the library whose file the test edits meanwhile, asks a kubelet that the test plays, and is subscribed to
//! over gRPC.
//!
//! What these tests show of devices rests on that ABI fake. `real_gpu` is the one test for a machine with a GPU; it is
//! ignored by name.

#![cfg(test)]

mod attribution;
mod certificates;
mod faults;
mod process;
mod real_gpu;
mod slowness;
mod streaming;
mod subscribers;
