//! Tests of the monitor as a process, with a worker that the test simulates.

#![cfg(test)]

mod checkpoints;
mod counting;
mod hostile;
mod logs;
mod process;
mod proxy;
mod restoring;
mod sample;
mod stores;
mod worker;
