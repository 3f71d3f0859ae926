//! The real program against a real S3 server (versitygw over a folder), with a proxy between them that breaks what a test
//! asks it to break. It also runs against a stand-in of hubs. Every test has a server, a proxy and folders of its own.

#![cfg(test)]

mod gateway;
mod hub;
mod program;
mod proxy;
mod scene;

mod addressing;
mod alive;
mod check;
mod check_store;
mod checks;
mod credentials;
mod faults;
mod folders;
mod install;
mod keys;
mod limits;
mod manifest;
mod pull;
mod push;
mod resume;
mod together;
