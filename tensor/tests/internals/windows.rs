use lowtide_tensor::testing::Windows;

#[test]
fn covering_is_the_inverse_of_window() {
    let stepped = |kernel, stride, padding, in_len, out_len| {
        Windows::stepped([kernel, stride, padding], [in_len, out_len])
    };
    let mut axes = vec![
        stepped(3, 2, 1, 7, 4),
        stepped(2, 2, 0, 7, 3),
        stepped(2, 2, 0, 7, 4),
        stepped(2, 3, 1, 8, 3),
        stepped(5, 1, 2, 3, 3),
    ];
    for in_len in 1..9 {
        axes.extend((1..12).map(|out_len| Windows::adaptive(in_len, out_len)));
    }
    for axis in axes {
        let [in_len, out_len] = axis.lens();
        for input in 0..in_len {
            for output in 0..out_len {
                assert_eq!(
                    axis.covering(input).contains(&output),
                    axis.window(output).contains(&input),
                    "{axis:?}: input {input}, output {output}",
                );
            }
        }
    }
}
