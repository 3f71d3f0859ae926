//! The real program on loopback: an engine that is started, probed, asked, made to fail and stopped; and load on it.

#![cfg(test)]

mod scene;

mod faults;
mod life;
mod load;
mod triton;
mod verdicts;
