//! The promises of the monitor, kept by the real program beside a worker that the test plays.

#![cfg(test)]

mod checkpoints;
mod counting;
mod logs;
mod process;
mod proxy;
mod restoring;
mod sample;
mod stores;
mod worker;
