//! Copies of bytes that may overlap, in blocks of 16, which every x86-64 processor moves at once.

use core::arch::x86_64::__m128i as Block;

/// Bytes that one round of a loop copies.
const ROUND: usize = 64;

/// Copies as `memmove` does.
///
/// Every branch reads all that it will write, or all of a round, before it writes: that is what makes overlaps safe.
///
/// # Safety
/// Both point to `length` bytes.
#[inline(always)]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: each branch stays within `length` bytes.
    unsafe {
        match length {
            0 => {}
            1 => to.write(from.read()),
            2..=3 => ends::<u16>(to, from, length),
            4..=7 => ends::<u32>(to, from, length),
            8..=15 => ends::<u64>(to, from, length),
            16..=32 => ends::<Block>(to, from, length),
            33..=64 => ends::<[Block; 2]>(to, from, length),
            65..=128 => ends::<[Block; 4]>(to, from, length),
            // The distance wraps for a target that lies before its source.
            _ if to.addr().wrapping_sub(from.addr()) >= length => forward(to, from, length),
            _ => backward(to, from, length),
        }
    }
}

/// Copies the first and the last value, which overlap if the length is less than two of them.
///
/// # Safety
/// `length` is between one and two sizes of `T`.
#[inline(always)]
unsafe fn ends<T>(to: *mut u8, from: *const u8, length: usize) {
    let last = length - size_of::<T>();
    // SAFETY: `last` and a value after it are within the length.
    unsafe {
        let (head, tail) = (load::<T>(from), load::<T>(from.add(last)));
        store(to, head);
        store(to.add(last), tail);
    }
}

/// # Safety
/// More than one round, and no byte of the source is before the target's byte of the same place.
unsafe fn forward(to: *mut u8, from: *const u8, length: usize) {
    let last = length - ROUND;
    let mut at = 0;
    // SAFETY: `at` and a round after it are within the length.
    unsafe {
        let tail = load::<[Block; 4]>(from.add(last));
        while at < last {
            store(to.add(at), load::<[Block; 4]>(from.add(at)));
            at += ROUND;
        }
        store(to.add(last), tail);
    }
}

/// # Safety
/// More than one round.
unsafe fn backward(to: *mut u8, from: *const u8, length: usize) {
    let mut at = length;
    // SAFETY: a round before `at` is within the length.
    unsafe {
        let head = load::<[Block; 4]>(from);
        while at > ROUND {
            at -= ROUND;
            store(to.add(at), load::<[Block; 4]>(from.add(at)));
        }
        store(to, head);
    }
}

/// # Safety
/// A value of `T` can be read there.
#[inline(always)]
unsafe fn load<T>(from: *const u8) -> T {
    // SAFETY: the caller's promise; integers have no invalid values.
    unsafe { from.cast::<T>().read_unaligned() }
}

/// # Safety
/// A value of `T` can be written there.
#[inline(always)]
unsafe fn store<T>(to: *mut u8, value: T) {
    // SAFETY: the caller's promise.
    unsafe { to.cast::<T>().write_unaligned(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length around the limits of the branches, to every distance around an overlap.
    #[test]
    fn bytes_are_copied_as_the_standard_library_copies_them() {
        let lengths = (0..=200_usize).chain([255, 256, 257, 511, 512, 513, 1023, 1024, 1025]);
        for length in lengths {
            for distance in (0..=140).chain([length.saturating_sub(1), length, length + 1, length + 65]) {
                for (source, target) in [(0, distance), (distance, 0)] {
                    let mut bytes: Vec<u8> = (0..2600_u32).map(|it| (it * 7 + it / 251) as u8).collect();
                    let mut expected = bytes.clone();
                    expected.copy_within(source..source + length, target);
                    let start = bytes.as_mut_ptr();
                    // SAFETY: 2600 bytes are more than any length with its distance.
                    unsafe { copy(start.add(target), start.add(source), length) };
                    assert_eq!(bytes, expected, "{length} bytes from {source} to {target}");
                }
            }
        }
    }
}
