//! The order of bytes.

use core::{cmp::Ordering, ffi::c_int};

/// Compares as `memcmp` does: negative, zero or positive.
///
/// # Safety
/// Both point to `length` bytes.
pub(crate) unsafe fn compare(left: *const u8, right: *const u8, length: usize) -> c_int {
    // SAFETY: each branch stays within `length` bytes.
    unsafe {
        match length {
            0 => 0,
            1 => c_int::from(left.read()) - c_int::from(right.read()),
            2..=3 => ends::<u16, 2>(left, right, length, u16::from_be_bytes),
            4..=7 => ends::<u32, 4>(left, right, length, u32::from_be_bytes),
            _ => words(left, right, length),
        }
    }
}

/// Compares the first and the last number, which overlap if the length is less than two of them.
///
/// # Safety
/// `length` is between one and two times N, the size of a number.
#[inline(always)]
unsafe fn ends<T: Ord, const N: usize>(
    left: *const u8,
    right: *const u8,
    length: usize,
    number: fn([u8; N]) -> T,
) -> c_int {
    let last = length - N;
    // SAFETY: `last` and a number after it are within the length.
    unsafe {
        match order(left, right, number) {
            Ordering::Equal => order(left.add(last), right.add(last), number) as c_int,
            unequal => unequal as c_int,
        }
    }
}

/// # Safety
/// Eight bytes or more.
unsafe fn words(left: *const u8, right: *const u8, length: usize) -> c_int {
    let last = length - size_of::<u64>();
    let mut at = 0;
    // SAFETY: `at`, which is at most `last`, and a word after it are within the length.
    unsafe {
        while at < last {
            let found = order(left.add(at), right.add(at), u64::from_be_bytes);
            if found != Ordering::Equal {
                return found as c_int;
            }
            at += size_of::<u64>();
        }
        order(left.add(last), right.add(last), u64::from_be_bytes) as c_int
    }
}

/// The order of two numbers whose first byte counts most is the order of their bytes.
///
/// # Safety
/// N bytes can be read at both.
#[inline(always)]
unsafe fn order<T: Ord, const N: usize>(
    left: *const u8,
    right: *const u8,
    number: fn([u8; N]) -> T,
) -> Ordering {
    // SAFETY: the caller's promise.
    let (left, right) = unsafe { (left.cast::<[u8; N]>().read(), right.cast::<[u8; N]>().read()) };
    number(left).cmp(&number(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length up to some rounds, with every place of a difference, and differences in both directions.
    #[test]
    fn bytes_are_ordered_as_the_standard_library_orders_them() {
        for length in 0..70 {
            let left: Vec<u8> = (0..length).map(|at| (at * 37 + 120) as u8).collect();
            for place in 0..=length {
                for change in [0, 1, 127, 128, 255] {
                    let mut right = left.clone();
                    if let Some(byte) = right.get_mut(place) {
                        *byte = byte.wrapping_add(change);
                    }
                    // A later difference must not count.
                    if let Some(byte) = right.get_mut(place + 1) {
                        *byte = byte.wrapping_sub(change);
                    }
                    // SAFETY: both have this length.
                    let found = unsafe { compare(left.as_ptr(), right.as_ptr(), length) };
                    assert_eq!(found.cmp(&0), left.cmp(&right), "{left:?} {right:?}");
                }
            }
        }
    }
}
