//! Scrapes of pods that answer as a script says: in time and late, whole and cut.

#![cfg(test)]

mod pods;
