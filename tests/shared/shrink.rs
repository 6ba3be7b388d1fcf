//! Shrinks failing scripts.

/// Removes steps, first many and then fewer at a time, while the script still fails.
pub(crate) fn shrink<S: Clone, T>(
    mut script: S,
    steps: impl Fn(&mut S) -> &mut Vec<T>,
    fails: impl Fn(&S) -> bool,
) -> S {
    let mut len = steps(&mut script).len();
    let mut chunk = len / 2;
    while chunk > 0 {
        let before = len;
        let mut start = 0;
        while start < len {
            let mut candidate = script.clone();
            steps(&mut candidate).drain(start..(start + chunk).min(len));
            if fails(&candidate) {
                len = steps(&mut candidate).len();
                script = candidate;
            } else {
                start += chunk;
            }
        }
        if chunk > 1 || len == before {
            chunk /= 2;
        }
    }
    script
}
