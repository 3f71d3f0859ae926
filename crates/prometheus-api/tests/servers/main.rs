//! Queries to servers that answer as a script says: in time and late, whole and cut, with and without TLS.

#![cfg(test)]

mod client;
mod tls;
