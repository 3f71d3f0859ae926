//! The names that the linker finds before those of musl.

use core::ffi::c_int;

/// # Safety
/// As in C: both point to `length` bytes, which do not overlap.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { crate::copies::copy(to, from, length) };
    to
}

/// # Safety
/// As in C: both point to `length` bytes.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { crate::copies::copy(to, from, length) };
    to
}

/// # Safety
/// As in C: both point to `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, length: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { crate::order::compare(left, right, length) }
}

/// # Safety
/// As in C: both point to `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, length: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { crate::order::compare(left, right, length) }
}
