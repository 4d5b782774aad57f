//! Patterns of names.

/// True if `name` matches `pattern`, in which `*` matches any text.
pub(crate) fn is_like(name: &str, pattern: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return name == pattern };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or_default();
    for part in parts {
        // The earliest match leaves the most text for the rest of the pattern.
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        let cases = [
            ("layers.0.bias", "*.bias", true),
            ("bias", "*.bias", false),
            ("layers.0.bias", "layers.0.bias", true),
            ("layers.0.bias", "layers.0", false),
            ("layers.10.norm.weight", "layers.*.norm.*", true),
            ("layers.10.conv.weight", "layers.*.norm.*", false),
            ("abab", "*ab", true),
            ("ab", "a*b*b", false),
            ("", "*", true),
        ];
        for (name, pattern, expected) in cases {
            assert_eq!(is_like(name, pattern), expected, "{name} {pattern}");
        }
    }
}
