//! Tests of the worker as a process, with a model that the test simulates.

#![cfg(test)]

mod ending;
mod fake_model;
mod process;
mod siblings;
mod tasks;
