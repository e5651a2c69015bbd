//! Sizes on the command line: `4G`, `512MiB`, `1048576`.

/// Parses a number of bytes. Units are powers of 1024, with or without `iB` or `B`: `64K`, `64KiB`, `64KB`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits_len = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_len);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("unknown unit {unit:?}; use K, M, G or T")),
    };
    let factor = 1u64 << shift;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| "too large".to_owned());
    }
    let value =
        number.parse::<f64>().map_err(|_| "expected a size such as 512M or 4G".to_owned())?;
    let bytes = value * factor as f64;
    if bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err("too large".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_parse_and_nonsense_does_not() {
        assert_eq!(parse_size("1048576"), Ok(1 << 20));
        assert_eq!(parse_size("4G"), Ok(4 << 30));
        assert_eq!(parse_size("1.5MiB"), Ok(3 << 19));
        assert_eq!(parse_size("64 kb"), Ok(64 << 10));
        for bad in ["", "G", "-1", "4X", "1.2.3", "99999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad:?}");
        }
    }
}
