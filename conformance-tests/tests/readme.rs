//! The README's lines on testing an own adapter are those of the library's own example, which runs as a doc test.

#[test]
fn the_ten_lines_are_the_ones_that_run() {
    let readme = include_str!("../../README.md");
    let part =
        readme.split_once("<!-- own-adapter:begin -->\n```rust,ignore\n").unwrap().1.split_once("```").unwrap().0;
    let docs: Vec<&str> = include_str!("../src/lib.rs").lines().filter_map(|line| line.strip_prefix("//! ")).collect();
    for line in part.lines().filter(|line| !line.is_empty()) {
        assert!(docs.contains(&line), "not in the library's example: {line}");
    }
}
