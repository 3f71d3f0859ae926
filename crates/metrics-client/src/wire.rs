//! Decodes snapshots off the wire, and refuses one with too many elements before memory is allocated for them.
//!
//! A limit on bytes does not bound memory: an empty Subject is two bytes on the wire and hundreds in memory. What a
//! snapshot means is not judged here.

use bytes::Buf as _;
use proto::metrics::v1::{Snapshot, SubscribeRequest};
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Why a message is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    TooManyElements,
    NoMessage,
}

/// Of the call `Subscribe`.
pub(crate) struct SubscribeCodec {
    inner: ProstCodec<SubscribeRequest, Snapshot>,
    most_elements: usize,
}

/// See the module.
pub(crate) struct SnapshotDecoder {
    inner: ProstDecoder<Snapshot>,
    most_elements: usize,
}

impl SubscribeCodec {
    /// `most_elements`: of the repeated fields of one snapshot.
    pub(crate) fn new(most_elements: usize) -> Self {
        Self { inner: ProstCodec::default(), most_elements }
    }
}

impl Codec for SubscribeCodec {
    type Encode = SubscribeRequest;
    type Decode = Result<Snapshot, Refusal>;
    type Encoder = ProstEncoder<SubscribeRequest>;
    type Decoder = SnapshotDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        self.inner.encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        SnapshotDecoder { inner: self.inner.decoder(), most_elements: self.most_elements }
    }
}

impl Decoder for SnapshotDecoder {
    type Item = Result<Snapshot, Refusal>;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        // Tonic hands over a message in one piece.
        let bytes = message.chunk();
        let counted = if bytes.len() == message.remaining() {
            elements(bytes, self.most_elements)
        } else {
            Err(Refusal::NoMessage)
        };
        match counted {
            Ok(_) => Ok(self.inner.decode(message)?.map(Ok)),
            Err(refusal) => {
                message.advance(message.remaining());
                Ok(Some(Err(refusal)))
            }
        }
    }
}

/// A message of the contract, as far as its fields repeat.
#[derive(Clone, Copy)]
enum Message {
    Snapshot,
    Subject,
    Reading,
    Event,
    /// Without repeated messages.
    Leaf,
}

impl Message {
    /// What the elements of a repeated field are; `None` for every other field.
    fn element(self, field: u64) -> Option<Self> {
        match self {
            Self::Snapshot => match field {
                6 => Some(Self::Subject),
                7 => Some(Self::Event),
                8 => Some(Self::Leaf),
                _ => None,
            },
            // Readings; holders and processes.
            Self::Subject => match field {
                8 => Some(Self::Reading),
                9 | 10 => Some(Self::Leaf),
                _ => None,
            },
            // Windows; holders.
            Self::Reading => (field == 7).then_some(Self::Leaf),
            Self::Event => (field == 6).then_some(Self::Leaf),
            Self::Leaf => None,
        }
    }
}

/// The elements in an encoded snapshot, unless there are more than `most`.
fn elements(snapshot: &[u8], most: usize) -> Result<usize, Refusal> {
    let mut left = most;
    count(snapshot, Message::Snapshot, &mut left)?;
    Ok(most - left)
}

/// Its depth is that of [`Message::element`].
fn count(mut bytes: &[u8], message: Message, left: &mut usize) -> Result<(), Refusal> {
    while !bytes.is_empty() {
        let (key, rest) = varint(bytes).ok_or(Refusal::NoMessage)?;
        let (inside, after) = field(key & 7, rest).ok_or(Refusal::NoMessage)?;
        bytes = after;
        if let (Some(inside), Some(element)) = (inside, message.element(key >> 3)) {
            *left = left.checked_sub(1).ok_or(Refusal::TooManyElements)?;
            count(inside, element, left)?;
        }
    }
    Ok(())
}

/// What is in a field with a length, and what follows the field. `None`: it ends early, or is a group, which the contract
/// does not have.
fn field(wire_type: u64, bytes: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    match wire_type {
        0 => Some((None, varint(bytes)?.1)),
        1 => Some((None, bytes.get(8..)?)),
        2 => {
            let (length, rest) = varint(bytes)?;
            let (inside, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            Some((Some(inside), after))
        }
        5 => Some((None, bytes.get(4..)?)),
        _ => None,
    }
}

/// A number, and what follows it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0_u64;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        let part = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit.
        if index == 9 && *byte > 1 {
            return None;
        }
        number |= part << (7 * index);
        if byte & 0x80 == 0 {
            return Some((number, &bytes[index + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message as _;
    use prost_types::{
        DescriptorProto, FileDescriptorSet,
        field_descriptor_proto::{Label, Type},
    };
    use proto::metrics::v1::{Event, Fault, Holder, Process, Reading, Subject, Window};

    use super::*;
    use crate::limits::Limits;

    fn elements(snapshot: &[u8]) -> Result<usize, Refusal> {
        super::elements(snapshot, Limits::default().elements)
    }

    #[test]
    fn every_element_counts_and_nothing_else_does() {
        let reading = Reading { value: Some(0.5), windows: vec![Window::default(); 2], ..Reading::default() };
        let subject = Subject {
            id: "GPU-a".into(),
            readings: vec![reading; 3],
            holders: vec![Holder { shares: 1, ..Holder::default() }; 4],
            processes: vec![Process { pid: 1, memory_bytes: Some(1 << 40) }; 5],
            throttle_reasons: vec![1; 20],
            fault: Some(Fault::default()),
            ..Subject::default()
        };
        let snapshot = Snapshot {
            sequence: u64::MAX,
            subjects: vec![subject; 2],
            events: vec![Event { holders: vec![Holder::default(); 6], ..Event::default() }; 3],
            faults: vec![Fault::default(); 7],
            ..Snapshot::default()
        };
        let (subjects, events) = (2 * (1 + 3 * (1 + 2) + 4 + 5), 3 * (1 + 6));
        assert_eq!(elements(&snapshot.encode_to_vec()), Ok(subjects + events + 7));
    }

    #[test]
    fn empty_elements_that_fit_into_the_bytes_are_refused() {
        let most = Limits::default().elements;
        for two_bytes in [[6 << 3 | 2, 0], [7 << 3 | 2, 0], [8 << 3 | 2, 0]] {
            assert_eq!(elements(&two_bytes.repeat(2 << 20)), Err(Refusal::TooManyElements));
            assert_eq!(elements(&two_bytes.repeat(most)), Ok(most));
        }
        // In a single subject.
        let subject = Subject { readings: vec![Reading::default(); most], ..Subject::default() };
        let subject = Snapshot { subjects: vec![subject], ..Snapshot::default() }.encode_to_vec();
        assert_eq!(elements(&subject), Err(Refusal::TooManyElements));
    }

    #[test]
    fn an_element_takes_little_memory() {
        let sizes = [size_of::<Subject>(), size_of::<Event>(), size_of::<Holder>(), size_of::<Reading>()];
        assert!(sizes.iter().all(|size| *size <= 300), "{sizes:?}");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [
            &[0x32][..],
            &[0x32, 0x05, 0x00],
            &[0x09, 0x00],
            &[0x15, 0x00],
            &[0x33],
            &[0x80; 11],
            &[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
            &[0x32, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
        ] {
            assert_eq!(elements(bytes), Err(Refusal::NoMessage), "{bytes:x?}");
        }
        assert_eq!(elements(&[]), Ok(0));
    }

    /// What is not counted is not limited.
    #[test]
    fn every_repeated_message_of_the_contract_is_counted() {
        let set = FileDescriptorSet::decode(proto::metrics::v1::FILE_DESCRIPTOR_SET).unwrap();
        let messages: BTreeMap<String, &DescriptorProto> = set
            .file
            .iter()
            .flat_map(|file| {
                let package = file.package().to_owned();
                file.message_type.iter().map(move |of| (format!(".{package}.{}", of.name()), of))
            })
            .collect();
        let mut seen = Vec::new();
        let mut open = vec![(Message::Snapshot, ".metrics.v1.Snapshot".to_owned())];
        while let Some((message, name)) = open.pop() {
            for field in &messages[&name].field {
                let is_message = field.r#type() == Type::Message;
                let is_counted = is_message && field.label() == Label::Repeated;
                let element = message.element(u64::try_from(field.number()).unwrap());
                assert_eq!(element.is_some(), is_counted, "{name}.{}", field.name());
                if let Some(element) = element {
                    open.push((element, field.type_name().to_owned()));
                } else if is_message {
                    let single = messages[field.type_name()];
                    let repeats = single.field.iter().find(|field| field.label() == Label::Repeated);
                    assert!(
                        repeats.is_none_or(|field| field.r#type() != Type::Message),
                        "{name}.{}",
                        field.name()
                    );
                }
                seen.push(field.number());
            }
        }
        assert!(seen.len() > 40, "{} fields", seen.len());
    }
}
