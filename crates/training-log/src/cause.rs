//! The reasons of causes, and the words in messages that name a cause whatever the exception.

use api::reasons;

use crate::Cause;

impl Cause {
    /// In the order in which they count.
    pub const ALL: [Cause; 9] = [
        Cause::CudaOutOfMemory,
        Cause::HostOutOfMemory,
        Cause::OutOfSpace,
        Cause::SourceUnauthorized,
        Cause::SourceNotFound,
        Cause::SourceUnreachable,
        Cause::InvalidArguments,
        Cause::UserError,
        Cause::PeerLost,
    ];

    /// For conditions, events and the launcher's message.
    pub fn reason(self) -> &'static str {
        match self {
            Self::CudaOutOfMemory => reasons::CUDA_OUT_OF_MEMORY,
            Self::HostOutOfMemory => reasons::HOST_OUT_OF_MEMORY,
            Self::OutOfSpace => reasons::OUT_OF_SPACE,
            Self::SourceUnauthorized => reasons::SOURCE_UNAUTHORIZED,
            Self::SourceNotFound => reasons::SOURCE_NOT_FOUND,
            Self::SourceUnreachable => reasons::SOURCE_UNREACHABLE,
            Self::InvalidArguments => reasons::INVALID_ARGUMENTS,
            Self::UserError => reasons::USER_ERROR,
            Self::PeerLost => reasons::PEER_LOST,
        }
    }

    pub fn from_reason(reason: &str) -> Option<Cause> {
        Cause::ALL.into_iter().find(|cause| cause.reason() == reason)
    }

    /// The cause that the message of any error names by itself.
    pub(crate) fn named_in(message: &str) -> Option<Cause> {
        let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
        if is_accelerator_out_of_memory(message) || has(&ACCELERATOR) {
            Some(Self::CudaOutOfMemory)
        } else if has(&HOST) || has(&SPACE) && has(&SHARED_MEMORY) {
            Some(Self::HostOutOfMemory)
        } else if has(&SPACE) {
            Some(Self::OutOfSpace)
        } else if has(&PEER) {
            Some(Self::PeerLost)
        } else {
            None
        }
    }
}

/// What precedes `out of memory`, without spaces, colons and quotes.
const DEVICES: [&str; 9] =
    ["CUDA", "CUDA error", "HIP", "HIP error", "NPU", "NPU error", "MPS backend", "XPU", "Cuda failure"];
const ACCELERATOR: [&str; 2] = ["CUBLAS_STATUS_ALLOC_FAILED", "cudaErrorMemoryAllocation"];
const HOST: [&str; 6] = [
    "Cannot allocate memory",
    "can't allocate memory",
    "not enough memory: you tried to allocate",
    // A kill of a worker of a DataLoader that nothing else ended: the out-of-memory killer.
    "killed by signal: Killed",
    // Its shared memory is full.
    "killed by signal: Bus error",
    "std::bad_alloc",
];
const SPACE: [&str; 7] = [
    "No space left on device",
    "Disk quota exceeded",
    "[Errno 28]",
    "[Errno 122]",
    "(os error 28)",
    "(os error 122)",
    "kind: StorageFull",
];
/// A full file system of this kind is memory.
const SHARED_MEMORY: [&str; 3] = ["/dev/shm", "</torch_", "shared memory"];
/// Of gloo, NCCL and its watchdog, and the rendezvous.
const PEER: [&str; 9] = [
    "Connection closed by peer [",
    "Connection closed by remote peer",
    "Connection reset by peer [",
    "remote process exited or there was a network error",
    "a remote process exiting prematurely",
    "collective operation timeout",
    "NCCL communicator was aborted",
    "connectFullMesh failed",
    "Failed to connect to peer",
];

fn is_accelerator_out_of_memory(message: &str) -> bool {
    message.match_indices("out of memory").any(|(at, _)| {
        let before = message[..at].trim_end_matches([' ', ':', '\'', '2']);
        DEVICES.iter().any(|device| before.ends_with(device))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_its_own_reason() {
        for cause in Cause::ALL {
            assert_eq!(Cause::from_reason(cause.reason()), Some(cause));
        }
        assert_eq!(Cause::from_reason("Succeeded"), None);
        assert!(Cause::ALL.is_sorted());
    }
}
