//! Examines the files that torch.save writes: zip archives whose directory is at the end. Members are not read.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

/// A zip archive begins with its first member, and with nothing else as torch writes it.
const MEMBER: &[u8] = b"PK\x03\x04";
/// The record at the end, to which torch adds no comment.
const END: &[u8] = b"PK\x05\x06";
const END_SIZE: usize = 22;
/// Sizes and offsets of an archive of more than 4 GiB are elsewhere.
const ELSEWHERE: u32 = u32::MAX;
/// A pickle without an archive, as torch wrote it before version 1.6, and as deepspeed still may. It has no end to
/// find.
const PICKLE: u8 = 0x80;

pub(super) fn is_whole(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut begin = [0; MEMBER.len()];
    if size < END_SIZE as u64 {
        return Ok(false);
    }
    file.read_exact(&mut begin)?;
    if begin[0] == PICKLE {
        return Ok(true);
    }
    let place = size - END_SIZE as u64;
    file.seek(SeekFrom::Start(place))?;
    let mut end = [0; END_SIZE];
    file.read_exact(&mut end)?;
    Ok(begin == MEMBER && is_end(&end, place))
}

/// Whether the record follows the directory that it describes.
fn is_end(record: &[u8; END_SIZE], place: u64) -> bool {
    let number = |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
    let (directory, offset) = (number(12), number(16));
    let is_elsewhere = directory == ELSEWHERE || offset == ELSEWHERE;
    record.starts_with(END) && (is_elsewhere || u64::from(directory) + u64::from(offset) <= place)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An archive without content but for the bytes that are examined.
    pub(in super::super) fn file() -> Vec<u8> {
        let (member, directory) = ([MEMBER, &[0; 60]].concat(), [0; 46]);
        let mut file = [member.as_slice(), &directory, END, &[0; 8]].concat();
        file.extend((directory.len() as u32).to_le_bytes());
        file.extend((member.len() as u32).to_le_bytes());
        file.extend([0; 2]);
        file
    }

    #[test]
    fn only_an_archive_with_its_end_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("optimizer.pt");
        let whole = file();
        let is_whole = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            is_whole(&path).unwrap()
        };
        assert!(is_whole(&whole));
        for length in 0..whole.len() {
            assert!(!is_whole(&whole[..length]), "{length} bytes");
        }
        assert!(!is_whole(&[0; 4096]), "zeros, as a crash may leave them");
        assert!(is_whole(&[b"\x80\x02".as_slice(), &[0; 64]].concat()), "a pickle of an old torch");
    }
}
