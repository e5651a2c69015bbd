//! Wide characters on streams of the store.
//!
//! glibc's cookie streams take bytes only: a wide-character call on one crashes. Here such calls are made of byte calls and the
//! conversions of the locale.

use std::ffi::{c_int, c_void};

use libc::{FILE, size_t, wchar_t};

use crate::hook::hooks;
use crate::hooks::stdio::{is_ours, standard_input, standard_output};
use crate::real::set_errno;

type Wide = u32;
/// End of file, and failure.
const WEOF: Wide = u32::MAX;
/// Longest character of any locale, in bytes (`MB_LEN_MAX`).
const CHAR_LEN_MAX: usize = 16;

/// `mbstate_t`.
#[repr(C)]
#[derive(Default)]
struct ShiftState([u64; 2]);

unsafe extern "C" {
    fn mbrtowc(out: *mut wchar_t, from: *const u8, len: size_t, state: *mut ShiftState) -> size_t;
    fn wcrtomb(out: *mut u8, from: wchar_t, state: *mut ShiftState) -> size_t;
}

/// Reads one character. A multibyte character that ends too early, or is none, fails with `EILSEQ`.
fn read_char(stream: *mut FILE) -> Wide {
    let mut bytes = [0_u8; CHAR_LEN_MAX];
    for len in 1..=CHAR_LEN_MAX {
        // SAFETY: the program vouches for its stream.
        let byte = unsafe { libc::fgetc(stream) };
        let Ok(byte) = u8::try_from(byte) else {
            if len > 1 {
                set_errno(libc::EILSEQ);
            }
            return WEOF;
        };
        bytes[len - 1] = byte;
        let mut wide: wchar_t = 0;
        // SAFETY: `len` bytes are there; a state of zeros is the initial one.
        match unsafe { mbrtowc(&raw mut wide, bytes.as_ptr(), len, &mut ShiftState::default()) } {
            NOT_YET => {}
            NO_CHAR => break,
            _ => return wide.cast_unsigned(),
        }
    }
    set_errno(libc::EILSEQ);
    WEOF
}

const NO_CHAR: size_t = size_t::MAX;
const NOT_YET: size_t = size_t::MAX - 1;

fn encode(wide: Wide) -> Option<([u8; CHAR_LEN_MAX], usize)> {
    let mut bytes = [0; CHAR_LEN_MAX];
    // SAFETY: room for the longest character; a state of zeros is the initial one.
    match unsafe { wcrtomb(bytes.as_mut_ptr(), wide.cast_signed(), &mut ShiftState::default()) } {
        NO_CHAR => None,
        len => Some((bytes, len)),
    }
}

fn write_char(wide: Wide, stream: *mut FILE) -> Wide {
    let Some((bytes, len)) = encode(wide) else { return WEOF };
    // SAFETY: `len` bytes are there; the program vouches for its stream.
    let written = unsafe { libc::fwrite(bytes.as_ptr().cast::<c_void>(), 1, len, stream) };
    if written == len { wide } else { WEOF }
}

fn push_back(wide: Wide, stream: *mut FILE) -> Wide {
    let Some((bytes, len)) = encode(wide).filter(|_| wide != WEOF) else { return WEOF };
    for byte in bytes[..len].iter().rev() {
        // SAFETY: the program vouches for its stream.
        if unsafe { libc::ungetc(c_int::from(*byte), stream) } < 0 {
            return WEOF;
        }
    }
    wide
}

fn read_line(out: *mut wchar_t, room: c_int, stream: *mut FILE) -> *mut wchar_t {
    const NEWLINE: Wide = b'\n' as Wide;
    let room = usize::try_from(room).unwrap_or(0);
    if room == 0 {
        return std::ptr::null_mut();
    }
    let mut len = 0;
    while len + 1 < room {
        let wide = read_char(stream);
        if wide == WEOF {
            if len == 0 {
                return std::ptr::null_mut();
            }
            break;
        }
        // SAFETY: the program vouches for `room` characters.
        unsafe { out.add(len).write(wide.cast_signed()) };
        len += 1;
        if wide == NEWLINE {
            break;
        }
    }
    // SAFETY: as above; `len` is below `room`.
    unsafe { out.add(len).write(0) };
    out
}

fn write_text(text: *const wchar_t, stream: *mut FILE) -> c_int {
    let mut next = text;
    loop {
        // SAFETY: the program's text ends with 0, where the loop ends.
        let wide = unsafe { *next }.cast_unsigned();
        if wide == 0 {
            return 1;
        }
        if write_char(wide, stream) == WEOF {
            return -1;
        }
        // SAFETY: as above; this was not the end.
        next = unsafe { next.add(1) };
    }
}

hooks! {
    fn fgetwc = getwc = fgetwc_unlocked = getwc_unlocked (stream: *mut FILE) -> Wide {
        if is_ours(stream) { read_char(stream) } else { real(stream) }
    }

    fn getwchar = getwchar_unlocked () -> Wide {
        let stream = standard_input();
        if is_ours(stream) { read_char(stream) } else { real() }
    }

    fn ungetwc(wide: Wide, stream: *mut FILE) -> Wide {
        if is_ours(stream) { push_back(wide, stream) } else { real(wide, stream) }
    }

    fn fgetws = fgetws_unlocked (out: *mut wchar_t, room: c_int, stream: *mut FILE) -> *mut wchar_t {
        if is_ours(stream) { read_line(out, room, stream) } else { real(out, room, stream) }
    }

    fn __fgetws_chk = __fgetws_unlocked_chk (out: *mut wchar_t, whole: size_t, room: c_int, stream: *mut FILE) -> *mut wchar_t {
        if is_ours(stream) { read_line(out, room, stream) } else { real(out, whole, room, stream) }
    }

    fn fputwc = putwc = fputwc_unlocked = putwc_unlocked (wide: Wide, stream: *mut FILE) -> Wide {
        if is_ours(stream) { write_char(wide, stream) } else { real(wide, stream) }
    }

    fn putwchar = putwchar_unlocked (wide: Wide) -> Wide {
        let stream = standard_output();
        if is_ours(stream) { write_char(wide, stream) } else { real(wide) }
    }

    fn fputws = fputws_unlocked (text: *const wchar_t, stream: *mut FILE) -> c_int {
        if is_ours(stream) { write_text(text, stream) } else { real(text, stream) }
    }

    fn fwide(stream: *mut FILE, mode: c_int) -> c_int {
        // Bytes, as far as libc knows; both kinds of calls work.
        if is_ours(stream) { mode.signum() } else { real(stream, mode) }
    }
}
