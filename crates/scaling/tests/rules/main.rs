//! The rules as a whole: parity with HPA v2 against a transcription of its rules, promises under arbitrary input, and
//! the pool of workers on a scripted load.

#![cfg(test)]

mod fuzz;
mod generated;
mod hpa;
mod kubernetes;
mod parity;
mod pool;
mod trace;
