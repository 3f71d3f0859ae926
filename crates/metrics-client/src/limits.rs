//! Limits for the messages of sources, and for the data that is kept of each. If a message exceeds its limit, the
//! stream is closed and nothing of the message is kept. Lists that are kept are cut at their limit.

/// Of one set of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Endpoints that are read at once; others wait for a place.
    pub sources: usize,
    /// Of one snapshot on the wire.
    pub message_bytes: usize,
    /// Subjects, readings, windows, holders, events and faults of one snapshot on the wire.
    pub elements: usize,
    /// The following are kept; what is beyond them is dropped on arrival.
    pub subjects: usize,
    /// Of one subject, and of one event.
    pub holders: usize,
    pub events: usize,
}

/// The limits for metrics agents.
impl Default for Limits {
    fn default() -> Self {
        Self {
            // A cluster of Kubernetes has at most so many nodes.
            sources: 5_000,
            // A snapshot of 512 subjects with all metrics of the contract has 3 MB and some 25 000 elements.
            message_bytes: 4 << 20,
            // An element takes at most 300 bytes of memory, and its texts what they take on the wire.
            elements: 65_536,
            // A node with 16 GPUs of 7 partitions each has 128.
            subjects: 512,
            // A GPU that is shared by time slices has some tens.
            holders: 128,
            // The limit of the contract.
            events: 64,
        }
    }
}
