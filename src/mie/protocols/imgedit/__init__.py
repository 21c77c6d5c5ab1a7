"""ImgEdit-Bench: nine kinds of edit graded by a judge, a hard suite, and conversations of several turns."""
