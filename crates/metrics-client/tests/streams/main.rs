//! The promises of the client, against a real gRPC server in this process that a test plays.

#![cfg(test)]

mod certificates;
mod following;
mod given;
mod source;
