def review_case(one, seed): raise NotImplementedError
